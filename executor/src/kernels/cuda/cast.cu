// From one type to another.

// Whole numbers from floats are cut, as on the CPU: what a register of 32 bits (64 for the wider types) does not hold, NaN
// included, becomes its least value; narrower types then take the low bits.
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

template <class From, class To> __global__ void cast(const From *x, To *y, i64 n) {
    EACH(i, n) y[i] = narrow<To>(Cast<From, To>::of(wide(x[i])));
}
