// Adds a bias to each channel.

template <class T> __global__ void add_bias(const T *x, const T *bias, T *y, i64 n, i64 channels, i64 inner) {
    EACH(i, n) y[i] = narrow<T>(wide(x[i]) + wide(bias[i / inner % channels]));
}
