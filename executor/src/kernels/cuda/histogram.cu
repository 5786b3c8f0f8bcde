// Between which bounds, which are sorted, each value lies: how many are not above it. None is above NaN.

template <class T> __global__ void bucketize(const T *x, const double *bounds, i32 *y, i64 n, i64 count) {
    EACH(i, n) {
        double value = (double)x[i];
        i64 low = 0, high = count;
        while (low < high) {
            i64 middle = (low + high) / 2;
            if (value < bounds[middle])
                high = middle;
            else
                low = middle + 1;
        }
        y[i] = (i32)low;
    }
}
