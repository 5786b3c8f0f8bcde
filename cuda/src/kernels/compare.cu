// Comparisons and logic.

#define ZIP(NAME, VALUE)                                                                                               \
    struct NAME {                                                                                                      \
        template <class T> static __device__ inline bool apply(Wide<T> x, Wide<T> y, double) {                         \
            return VALUE;                                                                                              \
        }                                                                                                              \
    };

template <class P> __device__ inline bool operator==(Complex<P> x, Complex<P> y) {
    return x.re == y.re && x.im == y.im;
}
template <class P> __device__ inline bool operator!=(Complex<P> x, Complex<P> y) {
    return !(x == y);
}

ZIP(Equal, x == y)
ZIP(NotEqual, x != y)
ZIP(Less, x < y)
ZIP(LessEqual, x <= y)
ZIP(Greater, x > y)
ZIP(GreaterEqual, x >= y)
ZIP(LogicalAnd, x && y)
ZIP(LogicalOr, x || y)

struct ApproximateEqual {
    template <class T> static __device__ inline bool apply(Wide<T> x, Wide<T> y, double tolerance) {
        return fabs(x - y) <= (Wide<T>)tolerance;
    }
};

struct LogicalNot {
    template <class T> static __device__ inline bool apply(bool x, double) {
        return !x;
    }
};
