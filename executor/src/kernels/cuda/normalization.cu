// Normalisation over a batch, by the mean and variance of each channel. Data are of [outer, channels, inner]; statistics
// are in float. The elements of a channel are cut into parts, each a block's; a block has `width` channels, so that
// neighbours read neighbours where channels are innermost.

struct Data {
    i64 outer, channels, inner;

    __device__ inline i64 count() const {
        return outer * inner;
    }
    // The place of element `k` of a channel.
    __device__ inline i64 at(i64 channel, i64 k) const {
        return (k / inner * channels + channel) * inner + k % inner;
    }
};

// How many elements, their mean, and the sum of the squares of their distances from it; of two sets together by Chan,
// Golub and LeVeque (1979).
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
        i64 k = share.first + share.row;
        // Distances are from the thread's first element.
        float pivot = k < share.end ? wide(x[data.at(share.channel, k)]) : 0.0f, count = 0, sum = 0, squares = 0;
        for (; k < share.end; k += share.rows) {
            float distance = wide(x[data.at(share.channel, k)]) - pivot;
            count += 1.0f;
            sum += distance;
            squares += distance * distance;
        }
        float mean = count > 0.0f ? sum / count : 0.0f;
        Moments own = {count, pivot + mean, squares - mean * sum};
        own = over_rows<Moments>(own, (int)width);
        if (share.row == 0 && share.channel < data.channels)
            found[share.place] = own;
    }
}
__global__ void statistics(const Moments *found, const float *old_mean, const float *old_variance, float *mean,
                           float *variance, float *running_mean, float *running_variance, double share, i64 channels,
                           i64 parts) {
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

template <class T>
__global__ void normalize(const T *x, const float *scale, const float *offset, const float *mean, const float *variance,
                          T *y, i64 n, double epsilon, Data data) {
    EACH(i, n) {
        i64 c = i / data.inner % data.channels;
        float factor = scale[c] / sqrtf(variance[c] + (float)epsilon);
        y[i] = narrow<T>((wide(x[i]) - mean[c]) * factor + offset[c]);
    }
}

// Sums of slopes, and of slopes times distances from the mean: they are of either sign, and what is left of many is small.
struct Slopes {
    double sum, moment;

    static __device__ inline Slopes combine(const Slopes &x, const Slopes &y) {
        Slopes both = {x.sum + y.sum, x.moment + y.moment};
        return both;
    }
};

template <class T>
__global__ void slopes(const T *dy, const T *x, const float *mean, Slopes *found, i64 width, i64 parts, Data data) {
    EACH_BLOCK(i, (data.channels + width - 1) / width * parts) {
        Share share(i, width, parts, data.channels, data.count());
        Slopes own = {0, 0};
        for (i64 k = share.first + share.row; k < share.end; k += share.rows) {
            i64 at = data.at(share.channel, k);
            float slope = wide(dy[at]);
            own.sum += (double)slope;
            own.moment += (double)(slope * (wide(x[at]) - mean[share.channel]));
        }
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
            d_offset[c] = (float)all.sum;
            d_scale[c] = (float)all.moment / sqrtf(variance[c] + (float)epsilon);
        }
    }
}

template <class T>
__global__ void data_gradient(const T *dy, const T *x, const float *scale, const float *mean, const float *variance,
                              const float *d_scale, const float *d_offset, T *dx, i64 n, double epsilon, i64 training,
                              Data data) {
    EACH(i, n) {
        i64 c = i / data.inner % data.channels;
        float deviation = 1.0f / sqrtf(variance[c] + (float)epsilon), factor = scale[c] * deviation;
        float slope = wide(dy[i]);
        if (training) {
            float share = 1.0f / (float)data.count();
            slope -= d_offset[c] * share;
            slope -= (wide(x[i]) - mean[c]) * (d_scale[c] * deviation * share);
        }
        dx[i] = narrow<T>(factor * slope);
    }
}

// Local response: `bias + alpha * sum of squares` of a channel and those near it, to the power of -beta.
struct Neighbours {
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

template <class T> __global__ void local_response(const T *x, T *y, i64 n, Neighbours near) {
    EACH(i, n) {
        const T *pixel = x + i / near.channels * near.channels;
        y[i] = narrow<T>(wide(x[i]) * near.power(near.norm(pixel, i % near.channels)));
    }
}

// What the outputs of a channel and of those near it owe to the channel.
template <class T>
__global__ void local_response_gradient(const T *dy, const T *x, const T *y, T *dx, i64 n, Neighbours near) {
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
