//! Series, continued fractions and iterations for special functions (Abramowitz and Stegun, chapters 5, 7, 26 and 27).

use num_complex::Complex64;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_PI_2, PI, SQRT_2};

const EULER: f64 = 0.577_215_664_901_532_9;

/// The largest number of terms of a series or a continued fraction; all of them converge earlier.
const TERMS: usize = 500;

/// Returns Dawson's integral: `exp(-x²)` times the integral of `exp(t²)` from 0 to `x`.
pub(super) fn dawson(x: f64) -> f64 {
    let at = x.abs();
    if !at.is_finite() {
        return if x.is_nan() { x } else { 0f64.copysign(x) };
    }
    if at < 0.2 {
        // The Taylor series, whose terms have alternating signs and fall quickly for small arguments.
        let (mut term, mut sum) = (x, x);
        for k in 1..TERMS {
            term *= -2.0 * x * x / (2 * k + 1) as f64;
            sum += term;
            if term.abs() <= f64::EPSILON * 0.1 * sum.abs() {
                break;
            }
        }
        return sum;
    }
    if at > 12.0 {
        // The asymptotic series, which is exact to the last bit for large arguments.
        let scale = 1.0 / (2.0 * x * x);
        let (mut term, mut sum) = (1.0, 1.0);
        for k in 0..20 {
            let next = term * (2 * k + 1) as f64 * scale;
            if next >= term || next < f64::EPSILON * 0.1 {
                break;
            }
            term = next;
            sum += term;
        }
        return sum / (2.0 * x);
    }
    // The trapezoidal sum of Rybicki's formula, over odd multiples of a step. The error falls as exp(-(π / 2 step)²),
    // and all terms are positive.
    const STEP: f64 = 0.25;
    let mut sum = 0.0;
    for k in 0..(0.5 * (at + 6.5) / STEP) as usize + 1 {
        let n = (2 * k + 1) as f64;
        let distance = at - n * STEP;
        sum += (-distance * distance).exp() * -(-4.0 * at * n * STEP).exp_m1() / n;
    }
    (sum / PI.sqrt()).copysign(x)
}

/// Returns the exponential integral Ei(x), the principal value of the integral of `exp(t) / t` from minus infinity to
/// `x`; NaN for negative numbers and infinity, like TensorFlow.
pub(super) fn exponential_integral(x: f64) -> f64 {
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x.is_nan() || x < 0.0 || x.is_infinite() {
        return f64::NAN;
    }
    if x < 45.0 {
        let (mut power, mut sum) = (1.0, 0.0);
        for k in 1..TERMS {
            power *= x / k as f64;
            let term = power / k as f64;
            sum += term;
            if term <= f64::EPSILON * 0.1 * sum {
                break;
            }
        }
        return EULER + x.ln() + sum;
    }
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 1..TERMS {
        let next = term * k as f64 / x;
        if next >= term || next < f64::EPSILON * 0.1 {
            break;
        }
        term = next;
        sum += term;
    }
    // The factor `exp(x)` is the product of two factors `exp(x / 2)`, so that the result overflows only if its value
    // does.
    let half = (0.5 * x).exp();
    half * (half / x) * sum
}

/// Returns the integrals of `cos(πt²/2)` and of `sin(πt²/2)` from 0 to `x`.
fn fresnel(x: f64) -> (f64, f64) {
    let at = x.abs();
    if at.is_nan() {
        return (x, x);
    }
    if at > 1e8 {
        return (0.5f64.copysign(x), 0.5f64.copysign(x));
    }
    let square = at * at;
    if at < 1.5 {
        // The power series; its terms belong to the cosine and the sine in turn.
        let angle = FRAC_PI_2 * square;
        let (mut term, mut sums) = (x, [x, 0.0]);
        for k in 1..TERMS {
            term *= angle / k as f64;
            let part = term / (2 * k + 1) as f64;
            sums[k % 2] += if k % 4 < 2 { part } else { -part };
            if part.abs() <= f64::EPSILON * 0.1 * sums[k % 2].abs() {
                break;
            }
        }
        return (sums[0], sums[1]);
    }
    // The continued fraction of the complex error function.
    let tiny = 1e-300;
    let mut b = Complex64::new(1.0, -PI * square);
    let mut c = Complex64::new(1.0 / tiny, 0.0);
    let mut d = b.inv();
    let mut h = d;
    for k in 0..TERMS {
        let n = (2 * k + 1) as f64;
        let a = -n * (n + 1.0);
        b += 4.0;
        d = (d * a + b).inv();
        c = b + c.inv() * a;
        let factor = c * d;
        h *= factor;
        if (factor.re - 1.0).abs() + factor.im.abs() < f64::EPSILON {
            break;
        }
    }
    h *= Complex64::new(at, -at);
    // The cosine and sine have the period 4 of the squared argument.
    let angle = FRAC_PI_2 * (square % 4.0);
    let both = Complex64::new(0.5, 0.5) * (1.0 - Complex64::new(angle.cos(), angle.sin()) * h);
    (both.re.copysign(x), both.im.copysign(x))
}

pub(super) fn fresnel_cosine(x: f64) -> f64 {
    fresnel(x).0
}

pub(super) fn fresnel_sine(x: f64) -> f64 {
    fresnel(x).1
}

/// Returns Spence's integral, the dilogarithm of `1 - x`.
pub(super) fn dilogarithm(x: f64) -> f64 {
    const LIMIT: f64 = PI * PI / 6.0;
    if x.is_nan() || x < 0.0 || x.is_infinite() {
        return f64::NAN;
    }
    if x == 0.0 {
        return LIMIT;
    }
    if x > 1.5 {
        // The reflection formula reduces the argument to its reciprocal.
        let log = x.ln();
        return -0.5 * log * log - dilogarithm(1.0 / x);
    }
    if x < 0.5 {
        return LIMIT - x.ln() * (-x).ln_1p() - dilogarithm_series(x);
    }
    dilogarithm_series(1.0 - x)
}

/// Returns the dilogarithm of a number between -0.5 and 0.5.
fn dilogarithm_series(z: f64) -> f64 {
    let (mut power, mut sum) = (1.0, 0.0);
    for k in 1..TERMS {
        power *= z;
        let term = power / (k * k) as f64;
        sum += term;
        if term.abs() <= f64::EPSILON * 0.1 * sum.abs() {
            break;
        }
    }
    sum
}

/// Returns the number below which a standard normal variable falls with probability `p`.
pub(super) fn normal_quantile(p: f64) -> f64 {
    if p.is_nan() || !(0.0..=1.0).contains(&p) {
        return f64::NAN;
    }
    if p == 0.0 || p == 1.0 {
        return if p == 0.0 { f64::NEG_INFINITY } else { f64::INFINITY };
    }
    // The function `correct` makes a step of Halley's iteration, which triples the number of exact digits. An error of
    // the probability is divided by the density at `x` to get the error of `x`.
    let density = (0.5 / PI).sqrt();
    let correct = |x: f64, error: f64| x - error / (1.0 + 0.5 * x * error);
    let middle = p - 0.5;
    if middle.abs() < 0.4 {
        let mut x = middle / density;
        for _ in 0..6 {
            let error = 0.5 * libm::erf(x * FRAC_1_SQRT_2) - middle;
            x = correct(x, error / (density * (-0.5 * x * x).exp()));
        }
        return x;
    }
    let tail = if middle < 0.0 { p } else { 1.0 - p };
    let log = tail.ln();
    let t = (-2.0 * log).sqrt();
    // Hastings' approximation, with an error below 5e-4.
    let over = 2.515517 + t * (0.802853 + t * 0.010328);
    let under = 1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308));
    let mut x = over / under - t;
    for _ in 0..3 {
        let relative = 0.5 * libm::erfc(-x * FRAC_1_SQRT_2) / tail - 1.0;
        x = correct(x, relative * (log + 0.5 * x * x).exp() / density);
    }
    if middle < 0.0 { x } else { -x }
}

/// Returns the inverse of the error function, by the same formula as TensorFlow, which rounds small arguments.
pub(super) fn inverse_erf(x: f64) -> f64 {
    normal_quantile(0.5 * (x + 1.0)) / SQRT_2
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::LN_2;

    fn close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() <= 2e-14 * expected.abs().max(1e-3), "{actual} is not {expected}");
    }

    #[test]
    fn functions_have_known_values() {
        close(dawson(1.0), 0.538_079_506_912_768_4);
        close(dawson(-10.0), -0.050_253_847_187_598_54);
        close(exponential_integral(1.0), 1.895_117_816_355_936_8);
        close(dilogarithm(0.5), PI * PI / 12.0 - 0.5 * LN_2 * LN_2);
        close(dilogarithm(2.0), -PI * PI / 12.0);
        close(fresnel_cosine(1.0), 0.779_893_400_376_822_9);
        close(fresnel_sine(1.0), 0.438_259_147_390_354_8);
        close(normal_quantile(0.975), 1.959_963_984_540_054);
        close(inverse_erf(0.5), 0.476_936_276_204_469_9);
    }

    #[test]
    fn the_ranges_of_methods_meet() {
        for (function, at) in [
            (dawson as fn(f64) -> f64, 0.2),
            (dawson, 12.0),
            (exponential_integral, 45.0),
            (fresnel_cosine, 1.5),
            (fresnel_sine, 1.5),
            (dilogarithm, 1.5),
            (dilogarithm, 0.5),
            (normal_quantile, 0.1),
            (normal_quantile, 0.9),
        ] {
            let step = 1e-9 * at;
            let slope = (function(at + 2.0 * step) - function(at - 2.0 * step)) / 4.0;
            let near = function(at + step) - function(at - step);
            assert!(
                (near - 2.0 * slope).abs() < 1e-13 * function(at).abs().max(1.0),
                "{at}: {near}, not {slope}"
            );
        }
    }
}
