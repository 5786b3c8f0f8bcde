// Functions of one element, and the element-wise parts of their gradients.

#define MAP(NAME, VALUE)                                                                                               \
    struct NAME {                                                                                                      \
        template <class T> static __device__ inline auto apply(Wide<T> x, double) {                                    \
            typedef Wide<T> W;                                                                                         \
            return VALUE;                                                                                              \
        }                                                                                                              \
    };
#define ZIP(NAME, VALUE)                                                                                               \
    struct NAME {                                                                                                      \
        template <class T> static __device__ inline Wide<T> apply(Wide<T> y, Wide<T> dy, double) {                     \
            typedef Wide<T> W;                                                                                         \
            return VALUE;                                                                                              \
        }                                                                                                              \
    };

template <class W> __device__ inline W sign_of(W x) {
    return x != x ? x : (W)((x > 0) - (x < 0));
}
__device__ inline i64 magnitude(i64 x) {
    return x < 0 ? -x : x;
}
template <class W> __device__ inline W magnitude(W x) {
    return fabs(x);
}
__device__ inline i64 to_even(i64 x) {
    return x;
}
template <class W> __device__ inline W to_even(W x) {
    return rint(x);
}

MAP(Neg, (W)-x)
MAP(Abs, magnitude(x))
MAP(Sign, sign_of(x))
MAP(Square, (W)(x * x))
MAP(Round, to_even(x))
MAP(Rint, rint(x))
MAP(Reciprocal, (W)1 / x)
MAP(Exp, exp(x))
MAP(Expm1, expm1(x))
MAP(Log, log(x))
MAP(Log1p, log1p(x))
MAP(Sqrt, sqrt(x))
MAP(Rsqrt, (W)1 / sqrt(x))
MAP(Floor, floor(x))
MAP(Ceil, ceil(x))
MAP(Sin, sin(x))
MAP(Cos, cos(x))
MAP(Tan, tan(x))
MAP(Asin, asin(x))
MAP(Acos, acos(x))
MAP(Atan, atan(x))
MAP(Sinh, sinh(x))
MAP(Cosh, cosh(x))
MAP(Tanh, tanh(x))
MAP(Asinh, asinh(x))
MAP(Acosh, acosh(x))
MAP(Atanh, atanh(x))
MAP(Sigmoid, (W)1 / ((W)1 + exp(-x)))
MAP(Erf, erf(x))
MAP(Erfc, erfc(x))
MAP(Lgamma, lgamma(x))
MAP(IsNan, x != x)
MAP(IsInf, fabs(x) == highest<W>())
MAP(IsFinite, fabs(x) < highest<W>())

ZIP(SqrtGrad, dy == (W)0 ? (W)0 : dy * (W)0.5 / y)
ZIP(RsqrtGrad, (W)-0.5 * (dy * y) * (y * y))
ZIP(ReciprocalGrad, -dy * (y * y))
ZIP(TanhGrad, dy *((W)1 - y * y))
ZIP(SigmoidGrad, dy *((W)1 - y) * y)
