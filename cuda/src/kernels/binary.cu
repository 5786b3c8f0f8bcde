// Binary functions of elements.

#define ZIP(NAME, VALUE)                                                                                               \
    struct NAME {                                                                                                      \
        template <class T> static __device__ inline Wide<T> apply(Wide<T> x, Wide<T> y, double) {                      \
            typedef Wide<T> W;                                                                                         \
            return VALUE;                                                                                              \
        }                                                                                                              \
    };

// For floats, the quotient is rounded to T before floor or trunc. An integer divided by zero is 0, because a
// kernel cannot report an error.
template <class T, bool = IsFloat<T>::value> struct Quotient {
    typedef Wide<T> W;
    static __device__ inline W down(W x, W y) {
        return floor(wide(narrow<T>(x / y)));
    }
    static __device__ inline W cut(W x, W y) {
        return trunc(wide(narrow<T>(x / y)));
    }
    static __device__ inline W rest_cut(W x, W y) {
        return fmod(x, y);
    }
    static __device__ inline W rest_down(W x, W y) {
        W rest = fmod(x, y);
        return rest != (W)0 && (rest < (W)0) != (y < (W)0) ? rest + y : rest;
    }
    static __device__ inline W whole(W x, W y) {
        return x / y;
    }
};
template <class T> struct Quotient<T, false> {
    static __device__ inline T cut(T x, T y) {
        return y == 0 ? 0 : y == -1 ? -x : x / y;
    }
    static __device__ inline T rest_cut(T x, T y) {
        return y == 0 || y == -1 ? 0 : x % y;
    }
    static __device__ inline T down(T x, T y) {
        T rest = rest_cut(x, y);
        return cut(x, y) - (rest != 0 && (rest < 0) != (y < 0));
    }
    static __device__ inline T rest_down(T x, T y) {
        T rest = rest_cut(x, y);
        return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
    }
    static __device__ inline T whole(T x, T y) {
        return cut(x, y);
    }
};

template <class W> __device__ inline W power(W x, W y) {
    return pow(x, y);
}
__device__ inline i64 power(i64 x, i64 y) {
    i64 product = 1;
    for (; y > 0; y >>= 1, x *= x)
        if (y & 1)
            product *= x;
    return product;
}

// A shift count, clamped to 0 and the number of bits of T minus 1.
template <class T> __device__ inline int places(T by) {
    const T most = sizeof(T) * 8 - 1;
    return (int)(by > most ? most : by > 0 ? by : (T)0);
}

ZIP(AddV2, x + y)
ZIP(Sub, x - y)
ZIP(Mul, x *y)
ZIP(RealDiv, x / y)
ZIP(Div, Quotient<T>::whole(x, y))
ZIP(FloorDiv, Quotient<T>::down(x, y))
ZIP(FloorMod, Quotient<T>::rest_down(x, y))
ZIP(TruncateDiv, Quotient<T>::cut(x, y))
ZIP(TruncateMod, Quotient<T>::rest_cut(x, y))
ZIP(Maximum, y > x || y != y ? y : x)
ZIP(Minimum, y < x || y != y ? y : x)
ZIP(Pow, power(x, y))
ZIP(SquaredDifference, (x - y) * (x - y))
ZIP(DivNoNan, y == (W)0 ? (W)0 : x / y)
ZIP(MulNoNan, y == (W)0 ? (W)0 : x *y)
ZIP(Atan2, atan2(x, y))
ZIP(Xdivy, x == (W)0 ? (W)0 : x / y)
ZIP(Xlogy, x == (W)0 ? (W)0 : x *log(y))
ZIP(Xlog1py, x == (W)0 ? (W)0 : x *log1p(y))
ZIP(BitwiseAnd, x &y)
ZIP(BitwiseOr, x | y)
ZIP(BitwiseXor, x ^ y)
ZIP(LeftShift, x << places(y))
ZIP(RightShift, x >> places(y))

// Adds the tensor `x` to `sum`, in which earlier inputs of AddN are already added.
template <class T> __global__ void add_to(const T *x, T *sum, i64 n) {
    EACH(i, n) sum[i] = narrow<T>(wide(sum[i]) + wide(x[i]));
}
