// Sets four flags: the tensor has a NaN, an infinity, a negative infinity, a positive infinity.

template <class T> __global__ void check_numerics(const T *x, i64 *found, i64 n) {
    EACH(i, n) {
        Wide<T> value = wide(x[i]);
        if (value != value)
            found[0] = 1;
        if (fabs(value) == highest<Wide<T>>()) {
            found[1] = 1;
            found[value < (Wide<T>)0 ? 2 : 3] = 1;
        }
    }
}
