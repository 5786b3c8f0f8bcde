// Normalisation over a batch, by the mean and variance of each channel: a block a channel. Data are of [outer, channels,
// inner]; statistics are in float.

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

template <class T>
__global__ void moments(const T *x, const float *old_mean, const float *old_variance, float *mean, float *variance,
                        float *running_mean, float *running_variance, double share, Data data) {
    i64 count = data.count();
    EACH_BLOCK(c, data.channels) {
        float sum = 0;
        for (i64 k = threadIdx.x; k < count; k += THREADS)
            sum += wide(x[data.at(c, k)]);
        float middle = over_block<Plus>(sum) / (float)count;
        float squares = 0;
        for (i64 k = threadIdx.x; k < count; k += THREADS) {
            float d = wide(x[data.at(c, k)]) - middle;
            squares += d * d;
        }
        float spread = over_block<Plus>(squares) / (float)count;
        if (threadIdx.x == 0) {
            float unbiased = spread * ((float)count / (float)(count > 1 ? count - 1 : 1));
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

template <class T>
__global__ void scale_gradients(const T *dy, const T *x, const float *mean, const float *variance, float *d_scale,
                                float *d_offset, double epsilon, Data data) {
    i64 count = data.count();
    EACH_BLOCK(c, data.channels) {
        float offset = 0, moment = 0;
        for (i64 k = threadIdx.x; k < count; k += THREADS) {
            i64 at = data.at(c, k);
            float slope = wide(dy[at]);
            offset += slope;
            moment += slope * (wide(x[at]) - mean[c]);
        }
        offset = over_block<Plus>(offset);
        moment = over_block<Plus>(moment);
        if (threadIdx.x == 0) {
            d_offset[c] = offset;
            d_scale[c] = moment / sqrtf(variance[c] + (float)epsilon);
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
