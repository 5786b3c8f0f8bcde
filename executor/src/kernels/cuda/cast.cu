// From one type to another.

// Whole numbers from floats are cut; beyond the type's range, and of NaN, they are what the GPU makes of them.
template <class From, class To> struct Cast {
    static __device__ inline Wide<To> of(Wide<From> x) {
        return (Wide<To>)x;
    }
};
template <class From> struct Cast<From, bool> {
    static __device__ inline bool of(Wide<From> x) {
        return x != (Wide<From>)0;
    }
};

template <class From, class To> __global__ void cast(const From *x, To *y, i64 n) {
    EACH(i, n) y[i] = narrow<To>(Cast<From, To>::of(wide(x[i])));
}
