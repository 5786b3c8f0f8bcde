// Conversions from one dtype to another.

// Converts a float to an integer by truncation, as the CPU does: NaN, and a value that does not fit into a
// 32-bit register (64 bits for the wider types), becomes the least value of that register; narrower types take
// the register's low bits.
template <class To, class W> __device__ inline To cut(W x) {
    const W half = (W)9223372036854775808.0;
    if (sizeof(To) < 4 || ((To)-1 < (To)0 && sizeof(To) == 4))
        return (To)(x >= (W)-2147483648.0 && x < (W)2147483648.0 ? (i32)x : (i32)0x80000000);
    if ((To)-1 > (To)0 && sizeof(To) == 8 && x >= half && x < 2 * half)
        return (To)(u64)x;
    return (To)(x >= -half && x < half ? (i64)x : (i64)0x8000000000000000);
}

template <class From, class To> struct Cast {
    static __device__ inline Wide<To> of(Wide<From> x) {
        if constexpr (IsFloat<From>::value && !IsFloat<To>::value)
            return cut<To>(x);
        else
            return (Wide<To>)x;
    }
};
template <class From> struct Cast<From, bool> {
    static __device__ inline bool of(Wide<From> x) {
        return x != (Wide<From>)0;
    }
};

// A real number gets an imaginary part of 0; of a complex number the real part is converted.
template <class From, class P> struct Cast<From, Complex<P>> {
    static __device__ inline Complex<P> of(Wide<From> x) {
        return {Cast<From, P>::of(x), (P)0};
    }
};
template <class P, class To> struct Cast<Complex<P>, To> {
    static __device__ inline Wide<To> of(Complex<P> x) {
        return Cast<P, To>::of(x.re);
    }
};
template <class P> struct Cast<Complex<P>, bool> {
    static __device__ inline bool of(Complex<P> x) {
        return x.re != (P)0;
    }
};
template <class P, class Q> struct Cast<Complex<P>, Complex<Q>> {
    static __device__ inline Complex<Q> of(Complex<P> x) {
        return {(Q)x.re, (Q)x.im};
    }
};

template <class From, class To> __global__ void cast(const From *x, To *y, i64 n) {
    EACH(i, n) y[i] = narrow<To>(Cast<From, To>::of(wide(x[i])));
}
