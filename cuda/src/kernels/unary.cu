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

// The digamma function: the recurrence raises x to at least 10, where the asymptotic series is exact to the
// last bits.
__device__ inline double digamma(double x) {
    const double pi = 3.141592653589793;
    if (x != x || x == lowest<double>() || (x <= 0.0 && x == floor(x)))
        return __longlong_as_double(0x7ff8000000000000LL);
    if (x == highest<double>())
        return x;
    double sum = 0.0;
    if (x < 0.0) {
        sum = -pi / tan(pi * (x - round(x)));
        x = 1.0 - x;
    }
    for (; x < 10.0; x += 1.0)
        sum -= 1.0 / x;
    const double bernoulli[7] = {1.0 / 12.0,  -1.0 / 120.0,     1.0 / 252.0, -1.0 / 240.0,
                                 1.0 / 132.0, -691.0 / 32760.0, 1.0 / 12.0};
    double square = 1.0 / (x * x), series = 0.0;
    for (int i = 6; i >= 0; i--)
        series = (series + bernoulli[i]) * square;
    return sum + log(x) - 0.5 / x - series;
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
MAP(Digamma, (W)digamma((double)x))
MAP(Invert, (W)~x)
MAP(PopulationCount, (u8)__popcll((u64)x << (64 - 8 * sizeof(W))))
MAP(IsNan, x != x)
MAP(IsInf, fabs(x) == highest<W>())
MAP(IsFinite, fabs(x) < highest<W>())

ZIP(SqrtGrad, dy == (W)0 ? (W)0 : dy * (W)0.5 / y)
ZIP(RsqrtGrad, (W)-0.5 * (dy * y) * (y * y))
ZIP(ReciprocalGrad, -dy * (y * y))
ZIP(TanhGrad, dy *((W)1 - y * y))
ZIP(SigmoidGrad, dy *(y * ((W)1 - y)))
