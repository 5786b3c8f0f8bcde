//! Special functions of two operands, elementwise, with broadcasting.

use crate::numeric::broadcast;
use crate::numeric::broadcast::Binary;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef};
use graph::DType::{self, *};
use graph::{Element, Shape, Tensor};

const TYPES: &[DType] = &[Float, Double];

/// Defines the kernel of a function that is computed in double precision.
macro_rules! kernel {
    ($op:literal, $Function:ident) => {
        KernelDef::of($op, &[("T", TYPES)], |init| match init.input_type(0) {
            Float => broadcast::unvectorized_kernel::<f32, f32, $Function>(),
            _ => broadcast::unvectorized_kernel::<f64, f64, $Function>(),
        })
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    kernel!("Zeta", Zeta),
    kernel!("Polygamma", Polygamma),
    kernel!("Igamma", Igamma),
    kernel!("Igammac", Igammac),
    kernel!("IgammaGradA", IgammaGradA),
    kernel!("RandomGammaGrad", RandomGammaGrad),
    kernel!("NextAfter", NextAfter),
    KernelDef::of("Betainc", &[("T", TYPES)], |init| match init.input_type(0) {
        Float => Kernel::sync(|ctx| incomplete_beta(ctx, single_beta)),
        _ => Kernel::sync(|ctx| incomplete_beta(ctx, beta)),
    }),
];

macro_rules! functions {
    ($($name:ident = $function:path;)*) => {$(
        struct $name;
        impl Binary<f64> for $name {
            type Out = f64;
            fn apply(x: f64, y: f64) -> f64 { $function(x, y) }
        }
        impl Binary<f32> for $name {
            type Out = f32;
            fn apply(x: f32, y: f32) -> f32 { $function(x.into(), y.into()) as f32 }
        }
    )*};
}

functions! {
    Zeta = zeta;
    Polygamma = polygamma;
    Igamma = lower_gamma;
    Igammac = upper_gamma;
    IgammaGradA = lower_gamma_slope;
    RandomGammaGrad = gamma_quantile_slope;
}

struct NextAfter;

impl Binary<f32> for NextAfter {
    type Out = f32;
    fn apply(x: f32, y: f32) -> f32 {
        libm::nextafterf(x, y)
    }
}

impl Binary<f64> for NextAfter {
    type Out = f64;
    fn apply(x: f64, y: f64) -> f64 {
        libm::nextafter(x, y)
    }
}

/// Returns the sum of `(q + k)^-x` over all `k` from 0: the first terms, then the Euler-Maclaurin formula (Abramowitz
/// and Stegun 23.2.9).
fn zeta(x: f64, q: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    if x < 1.0 || x.is_nan() || q.is_nan() {
        return f64::NAN;
    }
    if q == f64::INFINITY {
        return 0.0;
    }
    if q <= 0.0 {
        if q == q.floor() {
            // At a pole, the result is infinite if `x` is an even integer, and otherwise undefined (NaN).
            let half = 0.5 * x;
            return if half == half.round_ties_even() { f64::INFINITY } else { f64::NAN };
        }
        if x != x.floor() {
            return f64::NAN;
        }
    }
    let (mut sum, mut at) = (0.0, q);
    for _ in 0..12.max((12.0 - q).min(1e6) as usize) {
        sum += at.powf(-x);
        at += 1.0;
    }
    const BERNOULLI: [f64; 8] = [
        1.0 / 6.0,
        -1.0 / 30.0,
        1.0 / 42.0,
        -1.0 / 30.0,
        5.0 / 66.0,
        -691.0 / 2730.0,
        7.0 / 6.0,
        -3617.0 / 510.0,
    ];
    let power = at.powf(-x);
    if power == 0.0 {
        return sum;
    }
    sum += at * power / (x - 1.0) + 0.5 * power;
    let (mut factor, mut term_power) = (x / 2.0, power / at);
    for (k, b) in BERNOULLI.iter().enumerate() {
        sum += b * factor * term_power;
        let k = 2.0 * k as f64;
        factor *= (x + k + 1.0) * (x + k + 2.0) / ((k + 3.0) * (k + 4.0));
        term_power /= at * at;
    }
    sum
}

/// Returns the `n`-th derivative of the digamma function.
fn polygamma(n: f64, x: f64) -> f64 {
    if n < 0.0 || n != n.floor() {
        return f64::NAN;
    }
    if n == 0.0 {
        return crate::numeric::scalar::Real::digamma(x);
    }
    // A float too large to have a fractional bit, and infinity, count as even.
    let sign = (-1f64).powf(n + 1.0);
    sign * libm::tgamma(n + 1.0) * zeta(n + 1.0, x)
}

/// The largest number of terms of the series and of the continued fraction; both converge earlier.
const TERMS: usize = 2000;

/// Sets output 0 to a function of three inputs, element by element. The inputs have one shape, except scalars, which are
/// used for all elements.
fn incomplete_beta<T: Element>(ctx: &mut KernelContext<'_>, function: fn(T, T, T) -> T) -> Result<()> {
    let inputs = [ctx.input(0)?, ctx.input(1)?, ctx.input(2)?];
    let mut shape = Shape::scalar();
    for (i, input) in inputs.iter().enumerate() {
        if input.shape().rank() > 0 && shape.rank() > 0 && *input.shape() != shape {
            let name = ["a", "b", "x"][i];
            device::invalid!(
                "Shapes of {name} and the inputs before it are inconsistent: {} vs. {shape}",
                input.shape()
            );
        }
        if input.shape().rank() > 0 {
            shape = input.shape().clone();
        }
    }
    let values = [inputs[0].values::<T>()?, inputs[1].values::<T>()?, inputs[2].values::<T>()?];
    let at = |k: usize, i: usize| if inputs[k].shape().rank() == 0 { values[k][0] } else { values[k][i] };
    let out: Vec<T> = (0..shape.num_elements()).map(|i| function(at(0, i), at(1, i), at(2, i))).collect();
    let out = Tensor::from_slice(&out, shape)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Returns the regularized incomplete beta function, by its continued fraction (Abramowitz and Stegun 26.5.8); NaN unless
/// `a` and `b` are positive and `x` is between 0 and 1.
fn beta(a: f64, b: f64, x: f64) -> f64 {
    let is_defined = a > 0.0 && b > 0.0 && a.is_finite() && b.is_finite() && (0.0..=1.0).contains(&x);
    if !is_defined {
        return f64::NAN;
    }
    if x == 0.0 || x == 1.0 {
        return x;
    }
    let logs = libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b);
    let front = (logs + a * x.ln() + b * (-x).ln_1p()).exp();
    // The continued fraction converges quickly for `x` up to about the mean, `a / (a + b)`. For a larger `x`, the
    // result follows by symmetry from the function of `1 - x` with `a` and `b` exchanged.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(a, b, x) / a
    } else {
        1.0 - front * beta_fraction(b, a, 1.0 - x) / b
    }
}

/// Returns the function `beta` in single precision: NaN where the logarithm of the gamma function of a parameter
/// overflows.
fn single_beta(a: f32, b: f32, x: f32) -> f32 {
    let overflows = |p: f32| (libm::lgamma(p.into()) as f32).is_infinite();
    if x > 0.0 && x < 1.0 && (overflows(a) || overflows(b)) {
        f32::NAN
    } else {
        beta(a.into(), b.into(), x.into()) as f32
    }
}

fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let nonzero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for m in 1..TERMS {
        let m = m as f64;
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = fraction;
        for term in [even, odd] {
            d = 1.0 / nonzero(1.0 + term * d);
            c = nonzero(1.0 + term / c);
            fraction *= c * d;
        }
        if (fraction - before).abs() <= f64::EPSILON * fraction.abs() {
            break;
        }
    }
    fraction
}

/// Returns `x^a e^-x / gamma(a)`.
fn gamma_density(a: f64, x: f64) -> f64 {
    (a * x.ln() - x - libm::lgamma(a)).exp()
}

/// Returns the regularised lower incomplete gamma function, from its series.
fn gamma_series(a: f64, x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (1.0, 1.0, a);
    for _ in 0..TERMS {
        n += 1.0;
        term *= x / n;
        sum += term;
        if term <= sum * f64::EPSILON {
            break;
        }
    }
    gamma_density(a, x) * sum / a
}

/// Returns the regularised upper incomplete gamma function, from its continued fraction (Lentz's method).
fn gamma_fraction(a: f64, x: f64) -> f64 {
    let mut b = x + 1.0 - a;
    let mut c = 1.0 / f64::MIN_POSITIVE;
    let mut d = 1.0 / b;
    let mut h = d;
    for i in 1..TERMS {
        let step = -(i as f64) * (i as f64 - a);
        b += 2.0;
        let bounded = |v: f64| if v.abs() < f64::MIN_POSITIVE { f64::MIN_POSITIVE } else { v };
        d = 1.0 / bounded(step * d + b);
        c = bounded(b + step / c);
        let change = c * d;
        h *= change;
        if (change - 1.0).abs() <= f64::EPSILON {
            break;
        }
    }
    gamma_density(a, x) * h
}

/// Returns whether the incomplete gamma functions are defined for shape `a` and argument `x`.
fn has_gamma(a: f64, x: f64) -> bool {
    a > 0.0 && x >= 0.0
}

/// Returns the regularised lower incomplete gamma function. It is 0 at 0 for every shape `a`.
fn lower_gamma(a: f64, x: f64) -> f64 {
    match x {
        0.0 => 0.0,
        _ if !has_gamma(a, x) => f64::NAN,
        _ if a.is_infinite() => 0.0,
        f64::INFINITY => 1.0,
        _ if x > 1.0 && x > a => 1.0 - gamma_fraction(a, x),
        _ => gamma_series(a, x),
    }
}

/// Returns the regularised upper incomplete gamma function.
fn upper_gamma(a: f64, x: f64) -> f64 {
    match x {
        _ if !has_gamma(a, x) => f64::NAN,
        f64::INFINITY => 0.0,
        _ if x == 0.0 || a.is_infinite() => 1.0,
        _ if x < 1.0 || x < a => 1.0 - gamma_series(a, x),
        _ => gamma_fraction(a, x),
    }
}

/// Returns the derivative of the regularised lower incomplete gamma function with respect to `a`.
fn lower_gamma_slope(a: f64, x: f64) -> f64 {
    // Returns the derivative for finite `a` and `x`: that of the quantile with respect to `a`, negated, times the
    // density.
    let inside = |a: f64, x: f64| -inner_quantile_slope(a, x) * gamma_density(a, x) / x;
    slope_or_end(a, x, inside)
}

/// Returns the derivative, with respect to the shape `a`, of the quantile `x` of a gamma distribution: minus the
/// distribution function's derivative with respect to `a`, divided by the one with respect to `x`.
fn gamma_quantile_slope(a: f64, x: f64) -> f64 {
    slope_or_end(a, x, inner_quantile_slope)
}

/// Returns the derivative at `x`: `inside(a, x)` for `x` between 0 and infinity, and the limits of the derivative at
/// both ends.
fn slope_or_end(a: f64, x: f64, inside: impl Fn(f64, f64) -> f64) -> f64 {
    match x {
        0.0 => 0.0,
        _ if !has_gamma(a, x) => f64::NAN,
        _ if a.is_infinite() => 0.0,
        f64::INFINITY => -0.0,
        _ => inside(a, x),
    }
}

fn inner_quantile_slope(a: f64, x: f64) -> f64 {
    if x > 1.0 && x > a { gamma_fraction_slope(a, x) } else { gamma_series_slope(a, x) }
}

/// Computes [`inner_quantile_slope`] from the series of the distribution function, differentiated term by term.
fn gamma_series_slope(a: f64, x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (1.0, 1.0, a);
    let (mut term_slope, mut sum_slope) = (0.0f64, 0.0f64);
    for _ in 0..TERMS {
        n += 1.0;
        term_slope = (term_slope - term / n) * x / n;
        term *= x / n;
        sum += term;
        sum_slope += term_slope;
        if term <= sum * f64::EPSILON && term_slope.abs() <= sum_slope.abs() * f64::EPSILON {
            break;
        }
    }
    -x / a * (sum_slope + sum * (x.ln() - crate::numeric::scalar::Real::digamma(a + 1.0)))
}

/// Computes [`inner_quantile_slope`] from the continued fraction, differentiated step by step.
fn gamma_fraction_slope(a: f64, x: f64) -> f64 {
    // Each variable `*_slope` is the derivative with respect to `a` of the variable of the same name without the
    // suffix.
    let bounded = |v: f64| if v.abs() < f64::MIN_POSITIVE { f64::MIN_POSITIVE } else { v };
    let (mut b, b_slope) = (x + 1.0 - a, -1.0);
    let (mut c, mut c_slope) = (1.0 / f64::MIN_POSITIVE, 0.0);
    let mut d = 1.0 / b;
    let mut d_slope = -b_slope * d * d;
    let (mut h, mut h_slope) = (d, d_slope);
    for i in 1..TERMS {
        let (step, step_slope) = (-(i as f64) * (i as f64 - a), i as f64);
        b += 2.0;
        d_slope = step_slope * d + step * d_slope + b_slope;
        d = 1.0 / bounded(step * d + b);
        d_slope *= -d * d;
        c_slope = b_slope + (step_slope - step / c * c_slope) / c;
        c = bounded(b + step / c);
        let (change, change_slope) = (c * d, c_slope * d + c * d_slope);
        h_slope = h_slope * change + h * change_slope;
        h *= change;
        if (change - 1.0).abs() <= f64::EPSILON && (h * change_slope).abs() <= h_slope.abs() * f64::EPSILON {
            break;
        }
    }
    x * (h * (x.ln() - crate::numeric::scalar::Real::digamma(a)) + h_slope)
}
