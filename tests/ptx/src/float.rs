//! Floating-point instructions. Instructions whose results the hardware approximates are computed with full
//! precision here.

use crate::number::Float;
use crate::rule::Rule::{self, One, Three, Two};

/// Returns the rule of a floating-point operation with modifiers, such as `add` with `rn`.
pub(crate) fn rule<T: Float>(operation: &str, modifiers: &[&str]) -> Option<Rule> {
    // With `ftz`, subnormal operands and results become 0.
    if modifiers.contains(&"ftz") {
        return flushed::<T>(operation);
    }
    Some(match (operation, modifiers) {
        ("mov", []) => One(|a| a),
        ("add", ["rn"] | []) => Two(|a, b| rounded::<T>(a, b, |a, b| a + b)),
        ("sub", ["rn"] | []) => Two(|a, b| rounded::<T>(a, b, |a, b| a - b)),
        ("mul", ["rn"] | []) => Two(|a, b| rounded::<T>(a, b, |a, b| a * b)),
        ("div", ["rn" | "approx" | "full"]) => Two(|a, b| rounded::<T>(a, b, |a, b| a / b)),
        ("fma", ["rn"]) => Three(|a, b, c| T::fused(T::of(a), T::of(b), T::of(c)).bits()),
        ("add", ["rz"]) => Two(|a, b| directed::<T>(T::of(a).wide(), T::of(b).wide(), toward_zero)),
        ("fma", ["rz"]) if T::BITS == 32 => {
            Three(|a, b, c| directed::<T>(T::of(a).wide() * T::of(b).wide(), T::of(c).wide(), toward_zero))
        }
        ("fma", ["rm"]) if T::BITS == 32 => {
            Three(|a, b, c| directed::<T>(T::of(a).wide() * T::of(b).wide(), T::of(c).wide(), |_| true))
        }
        ("rcp", ["rn" | "approx"]) => One(|a| T::narrow(1.0 / T::of(a).wide()).bits()),
        ("sqrt", ["rn" | "approx"]) => One(|a| T::narrow(T::of(a).wide().sqrt()).bits()),
        ("rsqrt", ["approx"]) => One(|a| T::narrow(1.0 / T::of(a).wide().sqrt()).bits()),
        ("ex2", ["approx"]) => One(|a| T::narrow(T::of(a).wide().exp2()).bits()),
        ("lg2", ["approx"]) => One(|a| T::narrow(T::of(a).wide().log2()).bits()),
        ("neg", []) => One(|a| a ^ sign::<T>()),
        ("abs", []) => One(|a| a & !sign::<T>()),
        ("copysign", []) => Two(|a, b| a & sign::<T>() | b & !sign::<T>()),
        // If one operand is NaN, the other is the result.
        ("max", []) => Two(|a, b| T::narrow(T::of(a).wide().max(T::of(b).wide())).bits()),
        ("min", []) => Two(|a, b| T::narrow(T::of(a).wide().min(T::of(b).wide())).bits()),
        ("selp", []) => Three(|a, b, is_first| if is_first != 0 { a } else { b }),
        ("setp", [comparison]) => return compared::<T>(comparison),
        _ => return None,
    })
}

/// Returns the rule of an operation with the modifier `ftz`.
fn flushed<T: Float>(operation: &str) -> Option<Rule> {
    Some(match operation {
        "div" => Two(|a, b| flush::<T>(T::narrow(flush::<T>(a).wide() / flush::<T>(b).wide()).bits()).bits()),
        "rcp" => One(|a| flush::<T>(T::narrow(1.0 / flush::<T>(a).wide()).bits()).bits()),
        "rsqrt" => One(|a| flush::<T>(T::narrow(1.0 / flush::<T>(a).wide().sqrt()).bits()).bits()),
        "ex2" => One(|a| flush::<T>(T::narrow(flush::<T>(a).wide().exp2()).bits()).bits()),
        "lg2" => One(|a| flush::<T>(T::narrow(flush::<T>(a).wide().log2()).bits()).bits()),
        _ => return None,
    })
}

/// Returns the rule of a comparison; comparisons whose name ends with `u` are true if an operand is NaN.
fn compared<T: Float>(comparison: &str) -> Option<Rule> {
    Some(Two(match comparison {
        "eq" => |a, b| u64::from(T::of(a) == T::of(b)),
        "ne" => |a, b| u64::from(T::of(a) < T::of(b) || T::of(a) > T::of(b)),
        "lt" => |a, b| u64::from(T::of(a) < T::of(b)),
        "le" => |a, b| u64::from(T::of(a) <= T::of(b)),
        "gt" => |a, b| u64::from(T::of(a) > T::of(b)),
        "ge" => |a, b| u64::from(T::of(a) >= T::of(b)),
        "equ" => |a, b| u64::from(are_unordered::<T>(a, b) || T::of(a) == T::of(b)),
        "neu" => |a, b| u64::from(T::of(a) != T::of(b)),
        "ltu" => |a, b| u64::from(are_unordered::<T>(a, b) || T::of(a) < T::of(b)),
        "leu" => |a, b| u64::from(are_unordered::<T>(a, b) || T::of(a) <= T::of(b)),
        "gtu" => |a, b| u64::from(are_unordered::<T>(a, b) || T::of(a) > T::of(b)),
        "geu" => |a, b| u64::from(are_unordered::<T>(a, b) || T::of(a) >= T::of(b)),
        "num" => |a, b| u64::from(!are_unordered::<T>(a, b)),
        "nan" => |a, b| u64::from(are_unordered::<T>(a, b)),
        _ => return None,
    }))
}

/// Returns whether an operand is NaN.
fn are_unordered<T: Float>(a: u64, b: u64) -> bool {
    T::of(a).partial_cmp(&T::of(b)).is_none()
}

/// Returns a mask of the sign bit.
fn sign<T: Float>() -> u64 {
    1 << (T::BITS - 1)
}

/// Computes `of(a, b)` in f64 and rounds the result to `T`. The double rounding of a sum, difference, product or
/// quotient does not change the result, because f64 has more than twice the precision of f32.
fn rounded<T: Float>(a: u64, b: u64, of: fn(f64, f64) -> f64) -> u64 {
    T::narrow(of(T::of(a).wide(), T::of(b).wide())).bits()
}

fn toward_zero(result: f64) -> bool {
    result > 0.0
}

/// Returns `a + b` rounded to `T`: down if `is_down` returns true for the sum, otherwise up.
fn directed<T: Float>(a: f64, b: f64, is_down: fn(f64) -> bool) -> u64 {
    let sum = a + b;
    // The rounding error of the sum is computed exactly (Knuth, 1969).
    let part = sum - a;
    let lost = (a - (sum - part)) + (b - part);
    let nearest = T::narrow(sum);
    if !sum.is_finite() {
        return nearest.bits();
    }
    let above = nearest.wide() - sum;
    let is_above = above > 0.0 || (above == 0.0 && lost < 0.0);
    let is_below = above < 0.0 || (above == 0.0 && lost > 0.0);
    let (bits, is_positive) = (nearest.bits(), nearest.wide() > 0.0);
    match is_down(sum) {
        true if is_above => {
            if is_positive {
                bits - 1
            } else {
                bits + 1
            }
        }
        false if is_below => {
            if is_positive {
                bits + 1
            } else {
                bits - 1
            }
        }
        _ => bits,
    }
}

/// Replaces a subnormal number by 0.
fn flush<T: Float>(bits: u64) -> T {
    let exponents = match T::BITS {
        32 => 0xff << 23,
        _ => 0x7ff << 52,
    };
    T::of(if bits & exponents == 0 { bits & sign::<T>() } else { bits })
}
