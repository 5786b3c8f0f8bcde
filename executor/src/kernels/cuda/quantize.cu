// Numbers rounded to the levels that a quantised model would have, and the gradients of that.

// A range moved so that zero is one of its levels. Where both ends are 0 there is none.
struct Range {
    float least, most, scale, inverse;
    bool divides, is_there;

    __device__ inline Range(float from, float to, float lowest, float highest, bool divides)
        : divides(divides), is_there(from != 0.0f || to != 0.0f) {
        scale = (to - from) / (highest - lowest);
        float zero = roundf(lowest - from / scale);
        zero = zero != zero || zero < lowest ? lowest : zero > highest ? highest : zero;
        inverse = (highest - lowest) / (to - from);
        least = (lowest - zero) * scale;
        most = (highest - zero) * scale;
    }
    __device__ inline float apply(float x) const {
        float zero = floorf(-least * inverse + 0.5f);
        float bounded = x != x ? x : fmaxf(fminf(x, most), least);
        float shifted = bounded - least;
        float place = divides ? shifted / scale : shifted * inverse;
        return floorf(place - zero + 0.5f) * scale;
    }
    __device__ inline bool contains(float x) const {
        return x >= least && x <= most;
    }
};

// The two ends that attributes say, and the lowest and highest level.
struct Ends {
    double from, to, lowest, highest;
};

__global__ void fake_quantized(const float *x, float *y, i64 n, Ends ends) {
    Range range((float)ends.from, (float)ends.to, (float)ends.lowest, (float)ends.highest, false);
    EACH(i, n) y[i] = range.apply(x[i]);
}

// Where it does not flow, zero times it: zero only of what is finite.
__global__ void fake_quantized_gradient(const float *dy, const float *x, float *dx, i64 n, Ends ends) {
    Range range((float)ends.from, (float)ends.to, (float)ends.lowest, (float)ends.highest, false);
    EACH(i, n) dx[i] = dy[i] * (float)range.contains(x[i]);
}

// By ends in memory: of one range, or of one for each of the channels, which are innermost.
__global__ void fake_quantized_by(const float *x, const float *from, const float *to, float *y, i64 n, i64 channels,
                                  Ends ends, i64 is_one) {
    EACH(i, n) {
        i64 channel = i % channels;
        Range range(from[channel], to[channel], (float)ends.lowest, (float)ends.highest, is_one);
        y[i] = range.is_there ? range.apply(x[i]) : 0.0f;
    }
}

// With what each element gives to the lower and to the upper end, to be summed.
__global__ void fake_quantized_gradient_by(const float *dy, const float *x, const float *from, const float *to, float *dx,
                                           double *below, double *above, i64 n, i64 channels, Ends ends, i64 is_one) {
    EACH(i, n) {
        i64 channel = i % channels;
        Range range(from[channel], to[channel], (float)ends.lowest, (float)ends.highest, is_one);
        dx[i] = range.is_there ? dy[i] * (float)range.contains(x[i]) : dy[i];
        below[i] = range.is_there ? (double)(dy[i] * (float)(x[i] < range.least)) : 0.0;
        above[i] = range.is_there ? (double)(dy[i] * (float)(x[i] > range.most)) : 0.0;
    }
}
