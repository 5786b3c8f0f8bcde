//! Bessel functions of orders 0 and 1, computed in double precision: by power series for small arguments, and by
//! asymptotic expansions or integrals for large arguments (Abramowitz and Stegun 9.6 and 9.7).

use crate::numeric::elementwise;
use crate::numeric::elementwise::Unary;
use device::kernel::KernelDef;
use graph::DType::{self, *};

const TYPES: &[DType] = &[Half, Float, Double];

macro_rules! kernel {
    ($op:literal, $Function:ident) => {
        KernelDef::of($op, &[("T", TYPES)], |init| match init.input_type(0) {
            Half => elementwise::unvectorized_kernel::<half::f16, half::f16, $Function>(),
            Float => elementwise::unvectorized_kernel::<f32, f32, $Function>(),
            _ => elementwise::unvectorized_kernel::<f64, f64, $Function>(),
        })
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    kernel!("BesselI0", I0),
    kernel!("BesselI0e", I0e),
    kernel!("BesselI1", I1),
    kernel!("BesselI1e", I1e),
    kernel!("BesselJ0", J0),
    kernel!("BesselJ1", J1),
    kernel!("BesselY0", Y0),
    kernel!("BesselY1", Y1),
    kernel!("BesselK0", K0),
    kernel!("BesselK0e", K0e),
    kernel!("BesselK1", K1),
    kernel!("BesselK1e", K1e),
];

/// Defines functions of `x` for `f32` and `f64`, where `T` names the element type. Their bodies call helpers that
/// compute in double precision.
macro_rules! functions {
    ($($name:ident = |$x:ident: $T:ident| $value:expr;)*) => {$(
        struct $name;
        functions!(@of f32 $name, |$x, $T| $value);
        functions!(@of f64 $name, |$x, $T| $value);
    )*};
    (@of $t:ident $name:ident, |$x:ident, $T:ident| $value:expr) => {
        impl Unary<$t> for $name {
            type Out = $t;
            fn apply($x: $t) -> $t {
                type $T = $t;
                $value
            }
        }
    };
}

// `I0`, `I1`, `K0` and `K1` multiply by an exponential computed in type `T`, so they overflow or become 0 where that
// exponential does.
functions! {
    I0e = |x: T| first_scaled(0, x as f64) as T;
    I1e = |x: T| first_scaled(1, x as f64) as T;
    I0 = |x: T| x.abs().exp() * first_scaled(0, x as f64) as T;
    I1 = |x: T| x.abs().exp() * first_scaled(1, x as f64) as T;
    K0e = |x: T| second_scaled(0, x as f64) as T;
    K1e = |x: T| second_scaled(1, x as f64) as T;
    K0 = |x: T| times_decay(second_scaled(0, x as f64) as T, (-x).exp());
    K1 = |x: T| times_decay(second_scaled(1, x as f64) as T, (-x).exp());
    J0 = |x: T| if x.is_infinite() { T::NAN } else { libm::j0(x as f64) as T };
    J1 = |x: T| if x.is_infinite() { T::NAN } else { libm::j1(x as f64) as T };
    Y0 = |x: T| at_positive(x as f64, libm::y0) as T;
    // TensorFlow returns NaN, not -infinity, at the pole in single precision.
    Y1 = |x: T| if x == 0.0 && T::DIGITS == f32::DIGITS { T::NAN } else { at_positive(x as f64, libm::y1) as T };
}

/// Returns `scaled * decay`, a modified function of the second kind; an infinite `scaled`, its pole, stays infinite
/// even if `decay` is 0.
fn times_decay<T: num_traits::Float>(scaled: T, decay: T) -> T {
    if scaled.is_infinite() { scaled } else { scaled * decay }
}

/// Evaluates an oscillating function of the second kind: -infinity for arguments up to its pole at 0, NaN at
/// infinity.
fn at_positive(x: f64, function: fn(f64) -> f64) -> f64 {
    if x <= 0.0 {
        return f64::NEG_INFINITY;
    }
    if x == f64::INFINITY { f64::NAN } else { function(x) }
}

/// The argument above which the asymptotic expansion is exact to the last digit.
const LARGE: f64 = 30.0;

/// Returns `e^-|x| I(x)`; `I` is the modified Bessel function of the first kind of order `order`.
fn first_scaled(order: u32, x: f64) -> f64 {
    let size = x.abs();
    let value = if size <= LARGE {
        (-size).exp() * first_series(order, size)
    } else {
        let (mut term, mut sum) = (1.0, 1.0);
        let square = f64::from(4 * order * order);
        for k in 1..60 {
            let k = f64::from(k);
            let odd = 2.0 * k - 1.0;
            term *= (odd * odd - square) / (8.0 * k * size);
            sum += term;
            if term.abs() <= f64::EPSILON * sum {
                break;
            }
        }
        sum / (std::f64::consts::TAU * size).sqrt()
    };
    if order == 1 { value.copysign(x) } else { value }
}

/// Returns the modified Bessel function of the first kind `I(x)`, computed by its power series; `x` must not be
/// negative.
fn first_series(order: u32, x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let mut term = if order == 0 { 1.0 } else { x / 2.0 };
    let mut sum = term;
    for k in 1..200 {
        term *= quarter / f64::from(k * (k + order));
        sum += term;
        if term <= f64::EPSILON * sum {
            break;
        }
    }
    sum
}

/// Returns `e^x K(x)`, or infinity if `x` is 0 or negative; `K` is the modified Bessel function of the second kind.
fn second_scaled(order: u32, x: f64) -> f64 {
    if x <= 0.0 {
        return f64::INFINITY;
    }
    if x.is_nan() || x == f64::INFINITY {
        return if x.is_nan() { x } else { 0.0 };
    }
    if x <= 1.0 { x.exp() * second_series(order, x) } else { second_integral(order, x) }
}

/// Returns the modified Bessel function of the second kind `K(x)`, computed by its series around 0.
fn second_series(order: u32, x: f64) -> f64 {
    /// Euler's constant.
    const GAMMA: f64 = 0.577_215_664_901_532_9;
    let quarter = x * x / 4.0;
    let log = (x / 2.0).ln() + GAMMA;
    // Harmonic numbers `H(k)` and `H(k + order)`.
    let (mut low, mut high) = (0.0, f64::from(order));
    let mut power = if order == 0 { 1.0 } else { x / 2.0 };
    let mut sum = 0.0;
    for k in 1..30 {
        sum += power * (low + high) / 2.0;
        let k = f64::from(k);
        let next = k + f64::from(order);
        power *= quarter / (k * next);
        low += 1.0 / k;
        high += 1.0 / next;
    }
    let first = first_series(order, x);
    if order == 0 { sum - log * first } else { 1.0 / x + log * first - sum }
}

/// Returns `e^x K(x)`, the integral of `e^(-x (cosh t - 1)) cosh(order t)` over `t` from 0 to infinity. The
/// trapezoidal rule converges as fast as the integrand decays.
fn second_integral(order: u32, x: f64) -> f64 {
    let step = (0.5 / x.sqrt()).min(0.125);
    let mut sum = 0.5;
    for n in 1..1000 {
        let t = step * f64::from(n);
        // `cosh t - 1`, without cancellation, is `2 sinh²(t / 2)`.
        let half = (t / 2.0).sinh();
        let exponent = 2.0 * x * half * half;
        if exponent > 45.0 {
            break;
        }
        sum += (-exponent).exp() * if order == 0 { 1.0 } else { t.cosh() };
    }
    sum * step
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Wronskian `I0 K1 + I1 K0` is `1 / x` (Abramowitz and Stegun 9.6.15) in every range of arguments.
    #[test]
    fn the_wronskian_of_i_and_k_is_the_reciprocal_of_x() {
        for x in [1e-8, 0.3, 0.999, 1.0, 1.001, 2.0, 15.9, 16.1, 29.9, 30.1, 700.0, 1e5, 1e12] {
            let [i0, i1] = [0, 1].map(|order| first_scaled(order, x));
            let [k0, k1] = [0, 1].map(|order| second_scaled(order, x));
            let product = (i0 * k1 + i1 * k0) * x;
            assert!((product - 1.0).abs() < 1e-13, "{x}: {product}");
        }
    }
}
