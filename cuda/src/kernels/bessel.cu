// Bessel functions of orders 0 and 1, computed in double precision as on the CPU: by series for small
// arguments, by asymptotic expansions or integrals for others (Abramowitz and Stegun 9.6 and 9.7).

#define EPSILON 2.220446049250313e-16

// I(x) by its power series, for x >= 0.
__device__ inline double first_series(int order, double x) {
    double quarter = x * x / 4.0, term = order == 0 ? 1.0 : x / 2.0, sum = term;
    for (int k = 1; k < 200; k++) {
        term *= quarter / (double)(k * (k + order));
        sum += term;
        if (term <= EPSILON * sum)
            break;
    }
    return sum;
}

// e^-|x| I(x), by the power series, or for |x| > 30 by the asymptotic expansion, which is exact to the last
// digit there.
__device__ inline double first_scaled(int order, double x) {
    double size = fabs(x), value;
    if (size <= 30.0) {
        value = exp(-size) * first_series(order, size);
    } else {
        double term = 1.0, sum = 1.0, square = 4 * order * order;
        for (int k = 1; k < 60; k++) {
            double odd = 2.0 * k - 1.0;
            term *= (odd * odd - square) / (8.0 * k * size);
            sum += term;
            if (fabs(term) <= EPSILON * sum)
                break;
        }
        value = sum / sqrt(6.283185307179586 * size);
    }
    return order == 1 ? copysign(value, x) : value;
}

// K(x) by its series at 0.
__device__ inline double second_series(int order, double x) {
    double quarter = x * x / 4.0, log_of_half = log(x / 2.0) + 0.5772156649015329;
    // Harmonic numbers of k and of k + order.
    double low = 0.0, high = order, power = order == 0 ? 1.0 : x / 2.0, sum = 0.0;
    for (int k = 1; k < 30; k++) {
        sum += power * (low + high) / 2.0;
        double next = k + order;
        power *= quarter / (k * next);
        low += 1.0 / k;
        high += 1.0 / next;
    }
    double first = first_series(order, x);
    return order == 0 ? sum - log_of_half * first : 1.0 / x + log_of_half * first - sum;
}

// e^x K(x): the integral of e^(-x (cosh t - 1)) cosh(order t) over t >= 0, by the trapezoidal rule.
__device__ inline double second_integral(int order, double x) {
    double step = fmin(0.5 / sqrt(x), 0.125), sum = 0.5;
    for (int n = 1; n < 1000; n++) {
        // cosh t - 1 without cancellation.
        double t = step * n, half = sinh(t / 2.0), exponent = 2.0 * x * half * half;
        if (exponent > 45.0)
            break;
        sum += exp(-exponent) * (order == 0 ? 1.0 : cosh(t));
    }
    return sum * step;
}

// e^x K(x); infinity for x <= 0.
__device__ inline double second_scaled(int order, double x) {
    if (x <= 0.0)
        return highest<double>();
    if (x != x || x == highest<double>())
        return x != x ? x : 0.0;
    return x <= 1.0 ? exp(x) * second_series(order, x) : second_integral(order, x);
}

// K(x) from e^x K(x); the pole at 0 stays infinite.
template <class W> __device__ inline W times_decay(W scaled, W decay) {
    return scaled == highest<W>() ? scaled : scaled * decay;
}

#define NOT_A_NUMBER __longlong_as_double(0x7ff8000000000000LL)

struct J0 {
    static __device__ inline double of(double x) {
        return j0(x);
    }
};
struct J1 {
    static __device__ inline double of(double x) {
        return j1(x);
    }
};
struct Y0 {
    static __device__ inline double of(double x) {
        return y0(x);
    }
};
struct Y1 {
    static __device__ inline double of(double x) {
        return y1(x);
    }
};
// The oscillating functions J and Y are NaN at infinity; Y is -infinity for x <= 0.
template <class F> __device__ inline double first_kind(double x) {
    return fabs(x) == highest<double>() ? NOT_A_NUMBER : F::of(x);
}
template <class F> __device__ inline double second_kind(double x) {
    return x <= 0.0 ? lowest<double>() : first_kind<F>(x);
}

#define MAP(NAME, VALUE)                                                                                               \
    struct NAME {                                                                                                      \
        template <class T> static __device__ inline Wide<T> apply(Wide<T> x, double) {                                 \
            typedef Wide<T> W;                                                                                         \
            return (W)(VALUE);                                                                                         \
        }                                                                                                              \
    };

// I and K without the suffix `e` are multiplied by an exponential in the kernel's own dtype, so they overflow
// where the exponential of that dtype does.
MAP(BesselI0e, first_scaled(0, x))
MAP(BesselI1e, first_scaled(1, x))
MAP(BesselI0, exp(fabs(x)) * (W)first_scaled(0, x))
MAP(BesselI1, exp(fabs(x)) * (W)first_scaled(1, x))
MAP(BesselK0e, second_scaled(0, x))
MAP(BesselK1e, second_scaled(1, x))
MAP(BesselK0, times_decay((W)second_scaled(0, x), exp(-x)))
MAP(BesselK1, times_decay((W)second_scaled(1, x), exp(-x)))
MAP(BesselJ0, first_kind<J0>(x))
MAP(BesselJ1, first_kind<J1>(x))
MAP(BesselY0, second_kind<Y0>(x))
// In single precision Y1 is NaN at its pole.
MAP(BesselY1, x == (W)0 && sizeof(W) == 4 ? NOT_A_NUMBER : second_kind<Y1>(x))
