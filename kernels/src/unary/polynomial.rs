//! `exp`, `log`, `tanh` and the logistic function of `f32` as polynomials that compile to vector code, several times
//! faster than a call of the C library per element. Relative errors are below 2e-7; results below the smallest normal
//! number are 0.

use crate::numeric::elementwise::{MapLoop, Unary};
use crate::numeric::simd::vectorized_wide;

/// Computes `exp` of each element.
pub(crate) fn exp(out: &mut [f32], x: &[f32]) {
    run::<Exp>(out, x);
}

/// Computes the natural logarithm of each element.
pub(crate) fn log(out: &mut [f32], x: &[f32]) {
    run::<Log>(out, x);
}

/// Computes `tanh` of each element.
pub(crate) fn tanh(out: &mut [f32], x: &[f32]) {
    run::<Tanh>(out, x);
}

/// Computes the logistic function of each element.
pub(crate) fn sigmoid(out: &mut [f32], x: &[f32]) {
    run::<Sigmoid>(out, x);
}

fn run<O: Unary<f32, Out = f32>>(out: &mut [f32], x: &[f32]) {
    vectorized_wide(MapLoop { out, x, op: O::apply });
}

struct Exp;
struct Log;
struct Tanh;
struct Sigmoid;

/// The argument below which `exp` is smaller than every normal number, and the argument above which it overflows.
const EXP_LOW: f32 = -87.336_54;
const EXP_HIGH: f32 = 88.722_84;

impl Unary<f32> for Exp {
    type Out = f32;
    #[inline(always)]
    fn apply(x: f32) -> f32 {
        exp_of(x)
    }
}

/// Returns `2^n * p(r)` with `x = n ln 2 + r` and `|r| <= ln 2 / 2` (Cephes' polynomial).
#[inline(always)]
pub(crate) fn exp_of(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > EXP_HIGH { EXP_HIGH } else { x };
    let clamped = if clamped < EXP_LOW { EXP_LOW } else { clamped };
    // Adding this number leaves the nearest integer in the last bits of the mantissa. A conversion from float to
    // integer would handle out-of-range values, which prevents vectorisation.
    const ROUND: f32 = 12_582_912.0;
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let whole = (rounded.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let n = rounded - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.987_569_1e-4f32;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 0.166_666_65;
    p = p * r + 0.5;
    let p = (p * (r * r) + r) + 1.0;
    // `n` is added to the exponent of `p`, which is near 1; results out of range are replaced below.
    let value = f32::from_bits(p.to_bits().wrapping_add((whole as u32) << 23));
    let value = if x >= EXP_HIGH { f32::INFINITY } else { value };
    let value = if x < EXP_LOW { 0.0 } else { value };
    #[allow(clippy::eq_op)]
    if x != x { x } else { value }
}

impl Unary<f32> for Log {
    type Out = f32;
    /// Returns `e ln 2 + log(m)` with `m` in `[sqrt 1/2, sqrt 2)` (Cephes' polynomial).
    #[inline(always)]
    fn apply(x: f32) -> f32 {
        // A denormal number is scaled into the normal range first.
        let small = x < f32::MIN_POSITIVE;
        let scaled = if small { x * 8_388_608.0 } else { x };
        let bits = scaled.to_bits() as i32;
        let exponent = ((bits >> 23) & 0xff) - 126;
        let m = f32::from_bits(((bits & 0x007f_ffff) | 0x3f00_0000) as u32);
        let low = m < std::f32::consts::FRAC_1_SQRT_2;
        let e = (exponent - low as i32 - if small { 23 } else { 0 }) as f32;
        let m = if low { m + m } else { m } - 1.0;
        let square = m * m;
        let mut p = 7.037_683_6e-2f32;
        p = p * m - 1.151_461e-1;
        p = p * m + 1.167_699_9e-1;
        p = p * m - 1.242_014_1e-1;
        p = p * m + 1.424_932_3e-1;
        p = p * m - 1.666_805_8e-1;
        p = p * m + 2.000_071_5e-1;
        p = p * m - 2.499_999_4e-1;
        p = p * m + 3.333_333e-1;
        let tail = p * m * square + e * -2.121_944_4e-4 - 0.5 * square;
        let value = (m + tail) + e * 0.693_359_4;
        let value = if x == f32::INFINITY { x } else { value };
        let value = if x == 0.0 { f32::NEG_INFINITY } else { value };
        #[allow(clippy::neg_cmp_op_on_partial_ord)]
        if !(x >= 0.0) { f32::NAN } else { value }
    }
}

impl Unary<f32> for Tanh {
    type Out = f32;
    /// Returns Eigen's rational approximation of `tanh`, up to the argument at which the result is 1 to the last bit.
    #[inline(always)]
    fn apply(x: f32) -> f32 {
        const LIMIT: f32 = 7.905_311;
        let c = if x > LIMIT { LIMIT } else { x };
        let c = if c < -LIMIT { -LIMIT } else { c };
        let s = c * c;
        let mut p = -2.760_768_5e-16f32;
        p = p * s + 2.000_188e-13;
        p = p * s - 8.604_672e-11;
        p = p * s + 5.122_297_1e-8;
        p = p * s + 1.485_722_4e-5;
        p = p * s + 6.372_619_4e-4;
        p = p * s + 4.893_524_6e-3;
        let mut q = 1.198_258_4e-6f32;
        q = q * s + 1.185_347_1e-4;
        q = q * s + 2.268_434_6e-3;
        q = q * s + 4.893_525e-3;
        let value = c * p / q;
        // Near 0 the result is the argument, which also keeps the sign of zero.
        let value = if x.abs() < 4e-4 { x } else { value };
        #[allow(clippy::eq_op)]
        if x != x { x } else { value }
    }
}

impl Unary<f32> for Sigmoid {
    type Out = f32;
    #[inline(always)]
    fn apply(x: f32) -> f32 {
        1.0 / (1.0 + exp_of(-x))
    }
}
