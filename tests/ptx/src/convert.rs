//! Rules of PTX's `cvt` instruction, which converts between types.

use crate::number::{Float, Integer};
use crate::rule::Rule::{self, One};
use half::f16;

/// Returns the rule of a conversion, such as `cvt.rni.s32.f32`: `modifiers` is the rounding and the target type,
/// `from` the source type.
pub(crate) fn rule(modifiers: &[&str], from: &str) -> Option<Rule> {
    let (to, modifiers) = modifiers.split_last()?;
    match from {
        "u8" => of_integer::<u8>(modifiers, to),
        "s8" => of_integer::<i8>(modifiers, to),
        "u16" => of_integer::<u16>(modifiers, to),
        "s16" => of_integer::<i16>(modifiers, to),
        "u32" => of_integer::<u32>(modifiers, to),
        "s32" => of_integer::<i32>(modifiers, to),
        "u64" => of_integer::<u64>(modifiers, to),
        "s64" => of_integer::<i64>(modifiers, to),
        "f16" => of_float::<f16>(modifiers, to),
        "f32" => of_float::<f32>(modifiers, to),
        "f64" => of_float::<f64>(modifiers, to),
        _ => None,
    }
}

/// Returns the rule of a conversion from the integer type `S` to the type named `to`.
fn of_integer<S: Integer>(modifiers: &[&str], to: &str) -> Option<Rule> {
    match (modifiers, to) {
        ([], "u8") => cut::<S, u8>(),
        ([], "s8") => cut::<S, i8>(),
        ([], "u16") => cut::<S, u16>(),
        ([], "s16") => cut::<S, i16>(),
        ([], "u32") => cut::<S, u32>(),
        ([], "s32") => cut::<S, i32>(),
        ([], "u64") => cut::<S, u64>(),
        ([], "s64") => cut::<S, i64>(),
        (["rn"], "f16") => nearest::<S, f16>(),
        (["rn"], "f32") => nearest::<S, f32>(),
        (["rn"], "f64") => nearest::<S, f64>(),
        _ => None,
    }
}

/// Returns the rule of a truncation to another integer type.
fn cut<S: Integer, D: Integer>() -> Option<Rule> {
    Some(One(|a| D::cut(S::of(a).wide()).bits()))
}

/// Returns the rule of a conversion of an integer to the nearest float.
fn nearest<S: Integer, D: Float>() -> Option<Rule> {
    Some(One(|a| D::of_integer(S::of(a).wide()).bits()))
}

/// Returns the rule of a conversion from the floating-point type `S` to the type named `to`.
fn of_float<S: Float>(modifiers: &[&str], to: &str) -> Option<Rule> {
    match to {
        "f16" => to_float::<S, f16>(modifiers),
        "f32" => to_float::<S, f32>(modifiers),
        "f64" => to_float::<S, f64>(modifiers),
        "u8" => to_integer::<S, u8>(modifiers),
        "s8" => to_integer::<S, i8>(modifiers),
        "u16" => to_integer::<S, u16>(modifiers),
        "s16" => to_integer::<S, i16>(modifiers),
        "u32" => to_integer::<S, u32>(modifiers),
        "s32" => to_integer::<S, i32>(modifiers),
        "u64" => to_integer::<S, u64>(modifiers),
        "s64" => to_integer::<S, i64>(modifiers),
        _ => None,
    }
}

/// Returns the rule of a conversion between float types.
fn to_float<S: Float, D: Float>(modifiers: &[&str]) -> Option<Rule> {
    Some(One(match modifiers {
        ["rn"] | [] => |a| D::narrow(S::of(a).wide()).bits(),
        ["rni"] => |a| D::narrow(S::of(a).wide().round_ties_even()).bits(),
        ["rzi"] => |a| D::narrow(S::of(a).wide().trunc()).bits(),
        ["rmi"] => |a| D::narrow(S::of(a).wide().floor()).bits(),
        ["rpi"] => |a| D::narrow(S::of(a).wide().ceil()).bits(),
        // The modifier `sat` clamps the value to the range from 0 to 1; NaN becomes 0.
        ["sat"] => |a| {
            let x = S::of(a).wide();
            D::narrow(if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) }).bits()
        },
        _ => return None,
    }))
}

/// Returns the rule of a conversion of a float to an integer type.
fn to_integer<S: Float, D: Integer>(modifiers: &[&str]) -> Option<Rule> {
    Some(One(match modifiers {
        ["rni"] => |a| integer::<S, D>(a, f64::round_ties_even),
        ["rzi"] => |a| integer::<S, D>(a, f64::trunc),
        ["rmi"] => |a| integer::<S, D>(a, f64::floor),
        ["rpi"] => |a| integer::<S, D>(a, f64::ceil),
        _ => return None,
    }))
}

/// Converts a float to an integer: rounds it by `round` and clamps it to the range of the target type. NaN becomes 0
/// or, if one of the two types has 64 bits, an integer in which only the highest bit is set.
fn integer<S: Float, D: Integer>(bits: u64, round: fn(f64) -> f64) -> u64 {
    let x = S::of(bits).wide();
    if x.is_nan() {
        return if S::BITS == 64 || D::BITS == 64 { 1 << (D::BITS - 1) } else { 0 };
    }
    D::cut((round(x) as i128).clamp(D::LEAST, D::MOST)).bits()
}
