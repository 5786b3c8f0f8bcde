// Contrast, hue and saturation of images, and conversion between RGB and HSV.

template <class W> __device__ inline void to_hsv(W (&p)[3]) {
    W r = p[0], g = p[1], b = p[2];
    W value = r > g ? r : g, least = r < g ? r : g;
    value = value > b ? value : b;
    least = least < b ? least : b;
    W range = value - least, hue = 0;
    if (range > (W)0) {
        W sixth = (W)1 / ((W)6 * range);
        if (r == value)
            hue = sixth * (g - b);
        else if (g == value)
            hue = sixth * (b - r) + (W)(2.0 / 6.0);
        else
            hue = sixth * (r - g) + (W)(4.0 / 6.0);
        hue = hue < (W)0 ? hue + (W)1 : hue;
    }
    p[0] = hue;
    p[1] = value > (W)0 ? range / value : (W)0;
    p[2] = value;
}
// Clamps to 0..1; NaN fails both comparisons and stays.
template <class W> __device__ inline W bounded(W x) {
    return x < (W)0 ? (W)0 : x > (W)1 ? (W)1 : x;
}
template <class W> __device__ inline void to_rgb(W (&p)[3]) {
    W sixths = p[0] * (W)6, s = p[1], v = p[2];
    W pure[3] = {fabs(sixths - (W)3) - (W)1, (W)2 - fabs(sixths - (W)2), (W)2 - fabs(sixths - (W)4)};
    for (int i = 0; i < 3; i++)
        p[i] = ((W)1 - s + s * bounded(pure[i])) * v;
}

struct RGBToHSV {
    template <class W> static __device__ inline void change(W (&p)[3], W) {
        to_hsv(p);
    }
};
struct HSVToRGB {
    template <class W> static __device__ inline void change(W (&p)[3], W) {
        to_rgb(p);
    }
};
struct AdjustHue {
    template <class W> static __device__ inline void change(W (&p)[3], W delta) {
        to_hsv(p);
        p[0] += delta;
        p[0] -= floor(p[0]);
        to_rgb(p);
    }
};
struct AdjustSaturation {
    template <class W> static __device__ inline void change(W (&p)[3], W scale) {
        to_hsv(p);
        p[1] = bounded(p[1] * scale);
        to_rgb(p);
    }
};

// Applies F with the amount `by` to each pixel of three channels; one thread per pixel.
template <class F, class T> __global__ void pixels(const T *x, T *y, i64 n, double by) {
    typedef Wide<T> W;
    EACH(i, n) {
        W p[3];
        for (int c = 0; c < 3; c++)
            p[c] = wide(x[3 * i + c]);
        F::change(p, (W)by);
        for (int c = 0; c < 3; c++)
            y[3 * i + c] = narrow<T>(p[c]);
    }
}

// Scales the distance of each element from the mean of its channel in the image; one block per channel of an
// image.
template <class T> __global__ void contrast(const T *x, T *y, i64 n, i64 size, i64 channels, double factor) {
    EACH_BLOCK(i, n) {
        i64 start = i / channels * size * channels + i % channels;
        double sum = 0;
        for (i64 k = threadIdx.x; k < size; k += THREADS)
            sum += (double)wide(x[start + k * channels]);
        float mean = (float)over_block<Plus>(sum) * ((float)channels / (float)(size * channels));
        for (i64 k = threadIdx.x; k < size; k += THREADS)
            y[start + k * channels] = narrow<T>((wide(x[start + k * channels]) - mean) * (float)factor + mean);
    }
}
