// Batch normalisation, by the mean and variance of each channel. Data are [outer, channels, inner]; statistics
// are in float. The elements of a channel are divided into parts, one per block; a block handles `width`
// channels, so that neighbouring threads read neighbouring elements if channels are innermost.

struct Data {
    i64 outer, channels, inner;

    __device__ inline i64 count() const {
        return outer * inner;
    }
    // Returns whether aligned packs of `size` elements lie in one channel, or in `size` consecutive channels.
    __device__ inline bool has_packs(int size) const {
        return inner % size == 0 || (inner == 1 && channels % size == 0);
    }
    // The channel of a pack's first element.
    __device__ inline i64 channel(i64 pack, int size) const {
        return pack * size / inner % channels;
    }
    // Returns whether all packs that a thread handles belong to the same `size` channels.
    __device__ inline bool stays(int size) const {
        return inner == 1 && (i64)gridDim.x * blockDim.x * size % channels == 0;
    }
    // The index in the tensor of the first element that a thread handles.
    __device__ inline i64 place(const Share &share) const {
        i64 k = share.first + share.row;
        return (k / inner * channels + share.channel) * inner + k % inner;
    }
    // Calls `use` with the index in the tensor of each element that a thread handles.
    template <class F> __device__ inline void each(const Share &share, F use) const {
        i64 k = share.first + share.row, at = place(share), rest = k % inner;
        i64 more = share.rows % inner, step = share.rows / inner * channels * inner + more;
#pragma unroll 4
        for (; k < share.end; k += share.rows) {
            use(at);
            at += step;
            rest += more;
            if (rest >= inner) {
                rest -= inner;
                at += (channels - 1) * inner;
            }
        }
    }
};

// The count and mean of some elements, and the sum of their squared distances from the mean; the moments of two
// sets of elements are combined by the method of Chan, Golub and LeVeque (1979).
struct Moments {
    float count, mean, squares;

    static __device__ inline Moments combine(const Moments &x, const Moments &y) {
        float count = x.count + y.count, distance = y.mean - x.mean;
        float share = count > 0.0f ? y.count / count : 0.0f;
        Moments both = {count, x.mean + distance * share, x.squares + y.squares + distance * distance * x.count * share};
        return both;
    }
};

template <class T> __global__ void moments(const T *x, Moments *found, i64 width, i64 parts, Data data) {
    EACH_BLOCK(i, (data.channels + width - 1) / width * parts) {
        Share share(i, width, parts, data.channels, data.count());
        // Distances from the thread's first element are summed, not the elements, to avoid cancellation.
        float pivot = 0, count = 0, sum = 0, squares = 0;
        if (share.first + share.row < share.end)
            pivot = wide(x[data.place(share)]);
        data.each(share, [&](i64 place) {
            float distance = wide(x[place]) - pivot;
            count += 1.0f;
            sum += distance;
            squares += distance * distance;
        });
        float mean = count > 0.0f ? sum / count : 0.0f;
        Moments own = {count, pivot + mean, squares - mean * sum};
        own = over_rows<Moments>(own, (int)width);
        if (share.row == 0 && share.channel < data.channels)
            found[share.place] = own;
    }
}
__global__ void statistics(const Moments *found, const float *old_mean, const float *old_variance, float *mean,
                           float *variance, float *running_mean, float *running_variance, float *reserved, double share,
                           i64 channels, i64 parts) {
    if (reserved && blockIdx.x == 0 && threadIdx.x == 0)
        *reserved = 0.0f;
    EACH_BLOCK(c, channels) {
        Moments all = {0, 0, 0};
        for (i64 part = threadIdx.x; part < parts; part += THREADS)
            all = Moments::combine(all, found[c * parts + part]);
        all = over_block<Moments>(all);
        if (threadIdx.x == 0) {
            float middle = all.mean, spread = all.squares / all.count;
            float unbiased = spread * (all.count / (all.count > 1.0f ? all.count - 1.0f : 1.0f));
            float factor = (float)share;
            mean[c] = middle;
            variance[c] = spread;
            running_mean[c] = factor == 1.0f ? middle : (1.0f - factor) * old_mean[c] + factor * middle;
            running_variance[c] = factor == 1.0f ? unbiased : (1.0f - factor) * old_variance[c] + factor * unbiased;
        }
    }
}

// The linear function that normalises the elements of a channel; all kernels compute it with the same rounding.
// `offset` is null in gradient kernels that do not need it.
struct Line {
    float middle, deviation, factor, offset;

    static __device__ inline Line of(const float *scale, const float *offset, const float *mean, const float *variance,
                                     float epsilon, i64 c) {
        float deviation = 1.0f / sqrtf(variance[c] + epsilon);
        Line line = {mean[c], deviation, scale[c] * deviation, offset ? offset[c] : 0.0f};
        return line;
    }
    template <class T> __device__ inline T at(T x) const {
        return narrow<T>(__fmaf_rn(wide(x) - middle, factor, offset));
    }
};

// The activations after a normalisation: `apply` is the activation, `through` the factor by which it scales the
// gradient.
struct Identity {
    static const bool is_all = true;
    static __device__ inline float apply(float y) {
        return y;
    }
    static __device__ inline float through(float y) {
        return 1.0f;
    }
};
struct Relu {
    static const bool is_all = false;
    static __device__ inline float apply(float y) {
        return y <= 0.0f ? 0.0f : y;
    }
    static __device__ inline float through(float y) {
        return y > 0.0f;
    }
};
struct Relu6 {
    static const bool is_all = false;
    static __device__ inline float apply(float y) {
        return y <= 0.0f ? 0.0f : y > 6.0f ? 6.0f : y;
    }
    static __device__ inline float through(float y) {
        return y > 0.0f && y < 6.0f;
    }
};

// Normalises N elements at a time, adds `side` unless it is null, and applies the activation A. Values that
// depend on the channel are computed only when the channel changes.
template <int N, class A, class T>
__device__ inline void normalized(const T *x, const T *side, const float *scale, const float *offset, const float *mean,
                                  const float *variance, T *y, i64 n, float epsilon, const Data &data) {
    bool stays = data.stays(N);
    i64 channel = -1;
    Line lines[N];
    EACH(i, n / N) {
        if (channel < 0 || !stays) {
            i64 before = channel;
            channel = data.channel(i, N);
            if (channel != before)
#pragma unroll
                for (int k = 0; k < N; k++)
                    lines[k] = Line::of(scale, offset, mean, variance, epsilon, data.inner == 1 ? channel + k : channel);
        }
        Pack<T, N> in = ((const Pack<T, N> *)x)[i], more = {}, out;
        if (side)
            more = ((const Pack<T, N> *)side)[i];
#pragma unroll
        for (int k = 0; k < N; k++) {
            T value = lines[k].at(in.at[k]);
            if (side)
                value = narrow<T>(wide(value) + wide(more.at[k]));
            out.at[k] = narrow<T>(A::apply(wide(value)));
        }
        ((Pack<T, N> *)y)[i] = out;
    }
}
template <class T, class A>
__global__ void normalize(const T *x, const T *side, const float *scale, const float *offset, const float *mean,
                          const float *variance, T *y, i64 n, double epsilon, Data data) {
    if (data.has_packs(4))
        normalized<4, A>(x, side, scale, offset, mean, variance, y, n, (float)epsilon, data);
    else
        normalized<1, A>(x, side, scale, offset, mean, variance, y, n, (float)epsilon, data);
}

// The sums, over some elements, of the gradient, and of the gradient times the element's distance from the
// mean.
struct Slopes {
    float sum, moment;

    static __device__ inline Slopes combine(const Slopes &x, const Slopes &y) {
        Slopes both = {x.sum + y.sum, x.moment + y.moment};
        return both;
    }
};

template <class T, class A>
__global__ void slopes(const T *dy, const T *x, const float *scale, const float *offset, const float *mean,
                       const float *variance, double epsilon, Slopes *found, i64 width, i64 parts, Data data) {
    EACH_BLOCK(i, (data.channels + width - 1) / width * parts) {
        Share share(i, width, parts, data.channels, data.count());
        Slopes own = {0, 0};
        Line line = {};
        if (share.channel < data.channels)
            line = Line::of(scale, offset, mean, variance, (float)epsilon, share.channel);
        data.each(share, [&](i64 place) {
            float slope = wide(dy[place]);
            if (!A::is_all)
                slope *= A::through(wide(line.at(x[place])));
            own.sum += slope;
            own.moment += slope * (wide(x[place]) - line.middle);
        });
        own = over_rows<Slopes>(own, (int)width);
        if (share.row == 0 && share.channel < data.channels)
            found[share.place] = own;
    }
}
__global__ void scale_gradients(const Slopes *found, const float *variance, float *d_scale, float *d_offset,
                                double epsilon, i64 channels, i64 parts) {
    EACH_BLOCK(c, channels) {
        Slopes all = {0, 0};
        for (i64 part = threadIdx.x; part < parts; part += THREADS)
            all = Slopes::combine(all, found[c * parts + part]);
        all = over_block<Slopes>(all);
        if (threadIdx.x == 0) {
            d_offset[c] = all.sum;
            d_scale[c] = all.moment / sqrtf(variance[c] + (float)epsilon);
        }
    }
}

// The gradient of a normalisation with respect to an element of a channel.
struct Back {
    Line line;
    // The parts of the gradient that come through the batch's mean and variance; used only in training.
    float by_mean, by_distance;

    template <class T> __device__ inline float at(float slope, T x) const {
        slope -= by_mean;
        slope -= (wide(x) - line.middle) * by_distance;
        return line.factor * slope;
    }
};

// Computes the gradient with respect to N elements at a time. Values that depend on the channel are computed
// only when the channel changes.
template <int N, class A, class T>
__device__ inline void data_slopes(const T *dy, const T *x, const float *scale, const float *offset, const float *mean,
                                   const float *variance, const float *d_scale, const float *d_offset, T *dx, i64 n,
                                   float epsilon, bool training, const Data &data) {
    bool stays = data.stays(N);
    float share = 1.0f / (float)data.count();
    i64 channel = -1;
    Back backs[N];
    EACH(i, n / N) {
        if (channel < 0 || !stays) {
            i64 before = channel;
            channel = data.channel(i, N);
            if (channel != before)
#pragma unroll
                for (int k = 0; k < N; k++) {
                    i64 c = data.inner == 1 ? channel + k : channel;
                    Line line = Line::of(scale, offset, mean, variance, epsilon, c);
                    backs[k] = {line, d_offset[c] * share, d_scale[c] * line.deviation * share};
                }
        }
        Pack<T, N> slopes = ((const Pack<T, N> *)dy)[i], in = {}, out;
        if (training || !A::is_all)
            in = ((const Pack<T, N> *)x)[i];
#pragma unroll
        for (int k = 0; k < N; k++) {
            float slope = wide(slopes.at[k]);
            if (!A::is_all)
                slope *= A::through(wide(backs[k].line.at(in.at[k])));
            out.at[k] = narrow<T>(training ? backs[k].at(slope, in.at[k]) : backs[k].line.factor * slope);
        }
        ((Pack<T, N> *)dx)[i] = out;
    }
}
template <class T, class A>
__global__ void data_gradient(const T *dy, const T *x, const float *scale, const float *offset, const float *mean,
                              const float *variance, const float *d_scale, const float *d_offset, T *dx, i64 n,
                              double epsilon, i64 training, Data data) {
    if (data.has_packs(4))
        data_slopes<4, A>(dy, x, scale, offset, mean, variance, d_scale, d_offset, dx, n, (float)epsilon, training, data);
    else
        data_slopes<1, A>(dy, x, scale, offset, mean, variance, d_scale, d_offset, dx, n, (float)epsilon, training, data);
}

// Local response normalisation: an element is multiplied by `(bias + alpha * sum of squares)^-beta`; the sum is
// over the element's channel and its neighbours.
struct LocalNorm {
    i64 channels, radius;
    double bias, alpha, beta;

    template <class T> __device__ inline float norm(const T *pixel, i64 channel) const {
        i64 from = channel > radius ? channel - radius : 0;
        i64 to = channel + radius < channels ? channel + radius + 1 : channels;
        float sum = 0;
        for (i64 c = from; c < to; c++) {
            float value = wide(pixel[c]);
            sum += value * value;
        }
        return (float)bias + (float)alpha * sum;
    }
    __device__ inline float power(float norm) const {
        return powf(norm, (float)-beta);
    }
};

template <class T> __global__ void local_response(const T *x, T *y, i64 n, LocalNorm near) {
    EACH(i, n) {
        const T *pixel = x + i / near.channels * near.channels;
        y[i] = narrow<T>(wide(x[i]) * near.power(near.norm(pixel, i % near.channels)));
    }
}

// The gradient of local response normalisation with respect to each element, from the gradients of its channel
// and the neighbouring channels.
template <class T>
__global__ void local_response_gradient(const T *dy, const T *x, const T *y, T *dx, i64 n, LocalNorm near) {
    EACH(i, n) {
        i64 start = i / near.channels * near.channels, channel = i % near.channels;
        i64 from = channel > near.radius ? channel - near.radius : 0;
        i64 to = channel + near.radius < near.channels ? channel + near.radius + 1 : near.channels;
        float factor = -2.0f * (float)near.alpha * (float)near.beta * wide(x[i]), sum = 0;
        for (i64 c = from; c < to; c++) {
            float norm = near.norm(x + start, c);
            float share = factor * wide(y[start + c]) / norm + (c == channel ? near.power(norm) : 0.0f);
            sum += share * wide(dy[start + c]);
        }
        dx[i] = narrow<T>(sum);
    }
}
