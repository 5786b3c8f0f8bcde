// Rounding of numbers to the levels of a quantised model, and the gradients of the rounding.

// The range of a quantisation, shifted so that zero is one of its levels. The range is empty if both ends are
// 0.
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

// The ends of the range, which are unused if the ends are inputs of the op, and the lowest and the highest
// level.
struct Ends {
    double from, to, lowest, highest;
};

__global__ void fake_quantized(const float *x, float *y, i64 n, Ends ends) {
    Range range((float)ends.from, (float)ends.to, (float)ends.lowest, (float)ends.highest, false);
    EACH(i, n) y[i] = range.apply(x[i]);
}

// Outside the range the gradient is multiplied by zero, so that NaN and infinity become NaN as on the CPU.
__global__ void fake_quantized_gradient(const float *dy, const float *x, float *dx, i64 n, Ends ends) {
    Range range((float)ends.from, (float)ends.to, (float)ends.lowest, (float)ends.highest, false);
    EACH(i, n) dx[i] = dy[i] * (float)range.contains(x[i]);
}

// Like `fake_quantized`, with the ends of the range in memory: one range, or one range for each channel, where
// channels are innermost.
__global__ void fake_quantized_by(const float *x, const float *from, const float *to, float *y, i64 n, i64 channels,
                                  Ends ends, i64 is_one) {
    EACH(i, n) {
        i64 channel = i % channels;
        Range range(from[channel], to[channel], (float)ends.lowest, (float)ends.highest, is_one);
        y[i] = range.is_there ? range.apply(x[i]) : 0.0f;
    }
}

// Like `fake_quantized_gradient`, with the ends of the range in memory. `below` and `above` get each element's
// contribution to the gradients of the lower and the upper end.
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

template <class T> __device__ inline T most_finite();
template <> __device__ inline float most_finite<float>() {
    return __int_as_float(0x7f7fffff);
}
template <> __device__ inline double most_finite<double>() {
    return __longlong_as_double(0x7fefffffffffffffLL);
}

// Rounds numbers to quantised levels and converts them back. Each of `count` slices along an axis has a range
// of its own.
template <class T>
__global__ void round_trip(const T *x, const T *low, const T *high, T *y, i64 n, i64 count, i64 inner, double lowest,
                           double highest, i64 is_bounded, i64 is_half_up) {
    const T first = (T)lowest, last = (T)highest, none = most_finite<T>();
    EACH(i, n) {
        const i64 slice = i / inner % count;
        T from = low[slice], to = high[slice];
        // Each end of the range requires a scale. The smaller scale is used, because with the larger one the
        // other end of the range would be beyond the outermost level.
        const T by_from = first * from > (T)0 ? first / from : none, by_to = last * to > (T)0 ? last / to : none;
        const T scale = by_from < by_to ? by_from : by_to;
        const T inverse = by_from < by_to ? from / first : to / last;
        if (by_from < by_to)
            to = last * inverse;
        else
            from = first * inverse;
        const T value = is_bounded && x[i] == x[i] ? fmax(fmin(x[i], to), from) : x[i];
        y[i] = (is_half_up ? floor(value * scale + (T)0.5) : rint(value * scale)) * inverse;
    }
}
template <class T>
__global__ void round_trip_gradient(const T *dy, const T *x, const T *low, const T *high, T *dx, i64 n, i64 count,
                                    i64 inner) {
    EACH(i, n) {
        const i64 slice = i / inner % count;
        dx[i] = dy[i] * (T)(x[i] >= low[slice] && x[i] <= high[slice]);
    }
}
