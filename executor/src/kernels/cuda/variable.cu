// Variables changed in place.

struct Add {
    template <class W> static __device__ inline W of(W x, W y) {
        return x + y;
    }
};
struct Sub {
    template <class W> static __device__ inline W of(W x, W y) {
        return x - y;
    }
};
template <class F, class T> __global__ void update(T *value, const T *by, i64 n) {
    EACH(i, n) value[i] = narrow<T>(F::of(wide(value[i]), wide(by[i])));
}
