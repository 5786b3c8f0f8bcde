//! Conversions between types.

use crate::number::{Float, Integer};
use crate::rule::Rule::{self, One};
use half::f16;

/// `cvt.rni.s32.f32`: how, to what, from what.
pub(crate) fn rule(how: &[&str], from: &str) -> Option<Rule> {
    let (to, how) = how.split_last()?;
    match from {
        "u8" => of_integer::<u8>(how, to),
        "s8" => of_integer::<i8>(how, to),
        "u16" => of_integer::<u16>(how, to),
        "s16" => of_integer::<i16>(how, to),
        "u32" => of_integer::<u32>(how, to),
        "s32" => of_integer::<i32>(how, to),
        "u64" => of_integer::<u64>(how, to),
        "s64" => of_integer::<i64>(how, to),
        "f16" => of_float::<f16>(how, to),
        "f32" => of_float::<f32>(how, to),
        "f64" => of_float::<f64>(how, to),
        _ => None,
    }
}

fn of_integer<S: Integer>(how: &[&str], to: &str) -> Option<Rule> {
    match (how, to) {
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

fn cut<S: Integer, D: Integer>() -> Option<Rule> {
    Some(One(|a| D::cut(S::of(a).wide()).bits()))
}

fn nearest<S: Integer, D: Float>() -> Option<Rule> {
    Some(One(|a| D::of_integer(S::of(a).wide()).bits()))
}

fn of_float<S: Float>(how: &[&str], to: &str) -> Option<Rule> {
    match to {
        "f16" => to_float::<S, f16>(how),
        "f32" => to_float::<S, f32>(how),
        "f64" => to_float::<S, f64>(how),
        "u8" => to_integer::<S, u8>(how),
        "s8" => to_integer::<S, i8>(how),
        "u16" => to_integer::<S, u16>(how),
        "s16" => to_integer::<S, i16>(how),
        "u32" => to_integer::<S, u32>(how),
        "s32" => to_integer::<S, i32>(how),
        "u64" => to_integer::<S, u64>(how),
        "s64" => to_integer::<S, i64>(how),
        _ => None,
    }
}

fn to_float<S: Float, D: Float>(how: &[&str]) -> Option<Rule> {
    Some(One(match how {
        ["rn"] | [] => |a| D::narrow(S::of(a).wide()).bits(),
        ["rni"] => |a| D::narrow(S::of(a).wide().round_ties_even()).bits(),
        ["rzi"] => |a| D::narrow(S::of(a).wide().trunc()).bits(),
        ["rmi"] => |a| D::narrow(S::of(a).wide().floor()).bits(),
        ["rpi"] => |a| D::narrow(S::of(a).wide().ceil()).bits(),
        // From 0 to 1; what is no number is 0.
        ["sat"] => |a| {
            let x = S::of(a).wide();
            D::narrow(if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) }).bits()
        },
        _ => return None,
    }))
}

fn to_integer<S: Float, D: Integer>(how: &[&str]) -> Option<Rule> {
    Some(One(match how {
        ["rni"] => |a| integer::<S, D>(a, f64::round_ties_even),
        ["rzi"] => |a| integer::<S, D>(a, f64::trunc),
        ["rmi"] => |a| integer::<S, D>(a, f64::floor),
        ["rpi"] => |a| integer::<S, D>(a, f64::ceil),
        _ => return None,
    }))
}

/// The nearest that there is. What is no number is 0, or the highest bit where one of both has 64.
fn integer<S: Float, D: Integer>(bits: u64, round: fn(f64) -> f64) -> u64 {
    let x = S::of(bits).wide();
    if x.is_nan() {
        return if S::BITS == 64 || D::BITS == 64 { 1 << (D::BITS - 1) } else { 0 };
    }
    D::cut((round(x) as i128).clamp(D::LEAST, D::MOST)).bits()
}
