// Activation functions, and their gradients from the incoming gradient `g` and the op's input or output `x`.

#define MAP(NAME, VALUE)                                                                                               \
    struct NAME {                                                                                                      \
        template <class T> static __device__ inline Wide<T> apply(Wide<T> x, double parameter) {                       \
            typedef Wide<T> W;                                                                                         \
            return VALUE;                                                                                              \
        }                                                                                                              \
    };
#define ZIP(NAME, VALUE)                                                                                               \
    struct NAME {                                                                                                      \
        template <class T> static __device__ inline Wide<T> apply(Wide<T> g, Wide<T> x, double parameter) {            \
            typedef Wide<T> W;                                                                                         \
            return VALUE;                                                                                              \
        }                                                                                                              \
    };

template <class W> struct Softplus_ {
    static __device__ inline W of(W x, W threshold) {
        return x > -threshold ? x : x < threshold ? exp(x) : log1p(exp(x));
    }
};
// The threshold of softplus, which is exp(x) below the threshold, and x above its negative: the logarithm of
// the dtype's machine epsilon, plus 2.
__device__ inline float threshold_of(float) {
    return -13.942385f;
}
__device__ inline double threshold_of(double) {
    return -34.04365338911715;
}

MAP(Relu, x <= (W)0 ? (W)0 : x)
MAP(Relu6, x <= (W)0 ? (W)0 : x > (W)6 ? (W)6 : x)
MAP(LeakyRelu, x > (W)0 ? x : x *(W)(float)parameter)
MAP(Elu, x < (W)0 ? expm1(x) : x)
MAP(Selu, x < (W)0 ? (W)1.7580993408473769 * expm1(x) : (W)1.0507009873554805 * x)
MAP(Softplus, Softplus_<W>::of(x, threshold_of(x)))
MAP(Softsign, x / ((W)1 + fabs(x)))

// The gradient is multiplied by the derivative 0 or 1, not selected by a condition, so that a NaN gradient
// stays NaN where the derivative is 0.
ZIP(ReluGrad, g *(W)(x > (W)0))
ZIP(Relu6Grad, g *(W)(x > (W)0 && x < (W)6))
ZIP(LeakyReluGrad, x > (W)0 ? g : g *(W)(float)parameter)
ZIP(EluGrad, x < (W)0 ? (x + (W)1) * g : g)
ZIP(SeluGrad, x < (W)0 ? g *(x + (W)1.7580993408473769) : g * (W)1.0507009873554805)
ZIP(SoftplusGrad, g / (exp(-x) + (W)1))
ZIP(SoftsignGrad, g / (((W)1 + fabs(x)) * ((W)1 + fabs(x))))
