// Special functions of two operands, computed in double precision as on the CPU. The text is appended to
// `unary.cu`, because it uses the digamma function there.

#define NOT_A_NUMBER __longlong_as_double(0x7ff8000000000000LL)
#define EPSILON 2.220446049250313e-16
#define LEAST_POSITIVE 2.2250738585072014e-308

// The sum of (q + k)^-x over all k >= 0: the first terms, then the Euler-Maclaurin formula (Abramowitz and
// Stegun 23.2.9).
__device__ inline double zeta(double x, double q) {
    if (x == 1.0)
        return highest<double>();
    if (x < 1.0 || x != x || q != q)
        return NOT_A_NUMBER;
    if (q == highest<double>())
        return 0.0;
    if (q <= 0.0) {
        // At a pole the value is infinity for even x. For other x the sign differs on the two sides of the
        // pole, so the result is NaN.
        if (q == floor(q))
            return rint(0.5 * x) == 0.5 * x ? highest<double>() : NOT_A_NUMBER;
        if (x != floor(x))
            return NOT_A_NUMBER;
    }
    double sum = 0.0, at = q;
    for (double terms = fmax(12.0, floor(fmin(12.0 - q, 1e6))); terms > 0.0; terms -= 1.0) {
        sum += pow(at, -x);
        at += 1.0;
    }
    const double bernoulli[8] = {1.0 / 6.0,  -1.0 / 30.0,     1.0 / 42.0, -1.0 / 30.0,
                                 5.0 / 66.0, -691.0 / 2730.0, 7.0 / 6.0,  -3617.0 / 510.0};
    double power = pow(at, -x);
    if (power == 0.0)
        return sum;
    sum += at * power / (x - 1.0) + 0.5 * power;
    double factor = x / 2.0, term_power = power / at;
    for (int i = 0; i < 8; i++) {
        sum += bernoulli[i] * factor * term_power;
        double k = 2.0 * i;
        factor *= (x + k + 1.0) * (x + k + 2.0) / ((k + 3.0) * (k + 4.0));
        term_power /= at * at;
    }
    return sum;
}

// The n-th derivative of the digamma function.
__device__ inline double polygamma(double n, double x) {
    if (!(n >= 0.0) || n != floor(n))
        return NOT_A_NUMBER;
    if (n == 0.0)
        return digamma(x);
    return pow(-1.0, n + 1.0) * tgamma(n + 1.0) * zeta(n + 1.0, x);
}

// Largest number of terms of the series and of the continued fraction for the incomplete gamma functions, which
// converge earlier.
#define TERMS 2000

// Returns x^a e^-x / gamma(a), the factor of the series and of the continued fraction.
__device__ inline double gamma_density(double a, double x) {
    return exp(a * log(x) - x - lgamma(a));
}
// The lower incomplete gamma function by its series, divided by the complete one.
__device__ inline double gamma_series(double a, double x) {
    double term = 1.0, sum = 1.0, n = a;
    for (int i = 0; i < TERMS; i++) {
        n += 1.0;
        term *= x / n;
        sum += term;
        if (term <= sum * EPSILON)
            break;
    }
    return gamma_density(a, x) * sum / a;
}
__device__ inline double bounded(double v) {
    return fabs(v) < LEAST_POSITIVE ? LEAST_POSITIVE : v;
}
// The upper incomplete gamma function by its continued fraction, divided by the complete one (Lentz's method).
__device__ inline double gamma_fraction(double a, double x) {
    double b = x + 1.0 - a, c = 1.0 / LEAST_POSITIVE, d = 1.0 / b, h = d;
    for (int i = 1; i < TERMS; i++) {
        double step = -(double)i * (i - a);
        b += 2.0;
        d = 1.0 / bounded(step * d + b);
        c = bounded(b + step / c);
        double change = c * d;
        h *= change;
        if (fabs(change - 1.0) <= EPSILON)
            break;
    }
    return gamma_density(a, x) * h;
}

// Returns whether the incomplete gamma functions are defined.
__device__ inline bool has_gamma(double a, double x) {
    return a > 0.0 && x >= 0.0;
}
__device__ inline double lower_gamma(double a, double x) {
    if (x == 0.0)
        return 0.0;
    if (!has_gamma(a, x))
        return NOT_A_NUMBER;
    if (a == highest<double>())
        return 0.0;
    if (x == highest<double>())
        return 1.0;
    return x > 1.0 && x > a ? 1.0 - gamma_fraction(a, x) : gamma_series(a, x);
}
__device__ inline double upper_gamma(double a, double x) {
    if (!has_gamma(a, x))
        return NOT_A_NUMBER;
    if (x == highest<double>())
        return 0.0;
    if (x == 0.0 || a == highest<double>())
        return 1.0;
    return x < 1.0 || x < a ? 1.0 - gamma_series(a, x) : gamma_fraction(a, x);
}

// The derivative by `a` of the gamma distribution's quantile at `x`, from the derivatives of the terms of the
// series.
__device__ inline double gamma_series_slope(double a, double x) {
    double term = 1.0, sum = 1.0, n = a, term_slope = 0.0, sum_slope = 0.0;
    for (int i = 0; i < TERMS; i++) {
        n += 1.0;
        term_slope = (term_slope - term / n) * x / n;
        term *= x / n;
        sum += term;
        sum_slope += term_slope;
        if (term <= sum * EPSILON && fabs(term_slope) <= fabs(sum_slope) * EPSILON)
            break;
    }
    return -x / a * (sum_slope + sum * (log(x) - digamma(a + 1.0)));
}
// The derivative by `a` of the gamma distribution's quantile at `x`, from the continued fraction: each variable
// of the iteration is computed together with its derivative.
__device__ inline double gamma_fraction_slope(double a, double x) {
    double b = x + 1.0 - a, b_slope = -1.0, c = 1.0 / LEAST_POSITIVE, c_slope = 0.0, d = 1.0 / b;
    double d_slope = -b_slope * d * d, h = d, h_slope = d_slope;
    for (int i = 1; i < TERMS; i++) {
        double step = -(double)i * (i - a), step_slope = i;
        b += 2.0;
        d_slope = step_slope * d + step * d_slope + b_slope;
        d = 1.0 / bounded(step * d + b);
        d_slope *= -d * d;
        c_slope = b_slope + (step_slope - step / c * c_slope) / c;
        c = bounded(b + step / c);
        double change = c * d, change_slope = c_slope * d + c * d_slope;
        h_slope = h_slope * change + h * change_slope;
        h *= change;
        if (fabs(change - 1.0) <= EPSILON && fabs(h * change_slope) <= fabs(h_slope) * EPSILON)
            break;
    }
    return x * (h * (log(x) - digamma(a)) + h_slope);
}
__device__ inline double inner_quantile_slope(double a, double x) {
    return x > 1.0 && x > a ? gamma_fraction_slope(a, x) : gamma_series_slope(a, x);
}
// The derivative by `a` of the gamma distribution's quantile at `x` if `is_of_quantile` is set, else of the
// regularised lower incomplete gamma function, which is the quantile's derivative times minus the density. The
// limits at 0 and infinity are returned explicitly.
__device__ inline double gamma_slope(double a, double x, bool is_of_quantile) {
    if (x == 0.0)
        return 0.0;
    if (!has_gamma(a, x))
        return NOT_A_NUMBER;
    if (a == highest<double>())
        return 0.0;
    if (x == highest<double>())
        return -0.0;
    double slope = inner_quantile_slope(a, x);
    return is_of_quantile ? slope : -slope * gamma_density(a, x) / x;
}

#define SPECIAL(NAME, VALUE)                                                                                           \
    struct NAME {                                                                                                      \
        template <class T> static __device__ inline T apply(T x, T y, double) {                                        \
            return (T)(VALUE);                                                                                         \
        }                                                                                                              \
    };

SPECIAL(Zeta, zeta(x, y))
SPECIAL(Polygamma, polygamma(x, y))
SPECIAL(Igamma, lower_gamma(x, y))
SPECIAL(Igammac, upper_gamma(x, y))
SPECIAL(IgammaGradA, gamma_slope(x, y, false))
SPECIAL(RandomGammaGrad, gamma_slope(x, y, true))
SPECIAL(NextAfter, nextafter(x, y))
