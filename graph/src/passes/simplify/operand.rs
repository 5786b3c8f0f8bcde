//! Element-wise ops of which a constant operand decides: what adds nothing, multiplies by one, or chooses one side. Of
//! floats only what is so for every one of them, negative zeros and NaNs among them.

use super::Simplification::Constants;
use super::classes::takes_up;
use super::rule::{Input, Rewrite, Rule};
use super::site::Site;
use crate::dtype::{Bool8, DType};
use crate::graph::Output;
use crate::tensor::Tensor;
use half::{bf16, f16};

pub(super) const RULES: &[Rule] = &[
    Rule { ops: &["Mul"], kind: Constants, apply: |site| either(site, is_one) },
    Rule { ops: &["Add", "AddV2"], kind: Constants, apply: |site| either(site, adds_nothing) },
    Rule {
        ops: &["BitwiseOr", "BitwiseXor"],
        kind: Constants,
        apply: |site| either(site, |value| all(value, &NUMBERS.zero)),
    },
    Rule { ops: &["LogicalAnd"], kind: Constants, apply: |site| either(site, |value| is_bool(value, true)) },
    Rule { ops: &["LogicalOr"], kind: Constants, apply: |site| either(site, |value| is_bool(value, false)) },
    Rule { ops: &["Sub"], kind: Constants, apply: |site| second(site, |value| all(value, &NUMBERS.zero)) },
    Rule { ops: &["Sub"], kind: Constants, apply: from_zero },
    Rule {
        ops: &["Div", "DivNoNan", "FloorDiv", "Pow", "RealDiv", "TruncateDiv"],
        kind: Constants,
        apply: divided_by_one,
    },
    Rule { ops: &["Mul"], kind: Constants, apply: times_zero },
    Rule { ops: &["Pow"], kind: Constants, apply: squared },
    Rule { ops: &["Select", "SelectV2"], kind: Constants, apply: chosen },
];

/// Longer constants are not looked through, element by element.
const MOST_ELEMENTS: usize = 4096;

type Test = fn(&Tensor) -> bool;

/// The other operand, if one is such a constant.
fn either(site: &Site<'_>, is_neutral: Test) -> Option<Rewrite> {
    second(site, is_neutral).or_else(|| {
        let (constant, other) = (site.input(0)?, site.input(1)?);
        if leaves(site, other, constant, is_neutral) { Rewrite::same(other) } else { None }
    })
}

/// The first operand, if the second is such a constant.
fn second(site: &Site<'_>, is_neutral: Test) -> Option<Rewrite> {
    let (other, constant) = (site.input(0)?, site.input(1)?);
    if leaves(site, other, constant, is_neutral) { Rewrite::same(other) } else { None }
}

/// Whether the constant is neutral, and not broadcast to more than the other operand has.
fn leaves(site: &Site<'_>, other: Output, constant: Output, is_neutral: Test) -> bool {
    takes_up(&site.shape(other), &site.shape(constant))
        && site.value(constant).is_some_and(|value| is_neutral(&value))
}

fn is_one(value: &Tensor) -> bool {
    all(value, &NUMBERS.one)
}

/// A positive zero makes a negative one positive.
fn adds_nothing(value: &Tensor) -> bool {
    let zero = if value.dtype().is_floating() { &NUMBERS.minus_zero } else { &NUMBERS.zero };
    all(value, zero)
}

fn is_bool(value: &Tensor, wanted: bool) -> bool {
    all_are(value, Bool8::from(wanted))
}

/// For floats that are divided and rounded down an infinite one is none any more.
fn divided_by_one(site: &Site<'_>) -> Option<Rewrite> {
    let rounds = matches!(site.op(), "FloorDiv" | "TruncateDiv");
    if rounds && !site.dtype()?.is_integer() { None } else { second(site, is_one) }
}

fn from_zero(site: &Site<'_>) -> Option<Rewrite> {
    let (zero, x) = (site.input(0)?, site.input(1)?);
    let dtype = site.dtype()?;
    if !dtype.is_signed_integer() || !leaves(site, x, zero, |value| all(value, &NUMBERS.zero)) {
        return None;
    }
    Rewrite::other("Neg", [("T", dtype.into())], [Input::From(x)])
}

/// Whole numbers by zero are zeros, of as many as are known.
fn times_zero(site: &Site<'_>) -> Option<Rewrite> {
    let dtype = site.dtype().filter(|dtype| dtype.is_integer())?;
    let is_zero = |input| site.value(input).is_some_and(|value| all(&value, &NUMBERS.zero));
    if !is_zero(site.input(1)?) && !is_zero(site.input(0)?) {
        return None;
    }
    let shape = site.shape(site.output()).as_shape().filter(|shape| shape.num_elements() <= MOST_ELEMENTS)?;
    Rewrite::values(vec![Tensor::zeros(dtype, shape).ok()])
}

/// Of whole numbers alone: the power of a float is rounded elsewhere.
fn squared(site: &Site<'_>) -> Option<Rewrite> {
    let (x, two) = (site.input(0)?, site.input(1)?);
    let dtype = site.dtype().filter(|dtype| dtype.is_integer())?;
    let is_two = |value: &Tensor| value.to_i64s().is_ok_and(|values| values.iter().all(|v| *v == 2));
    if site.shape(two).num_elements()? > MOST_ELEMENTS || !leaves(site, x, two, is_two) {
        return None;
    }
    Rewrite::other("Square", [("T", dtype.into())], [Input::From(x)])
}

/// One side, if the condition chooses it everywhere and it is not broadcast.
fn chosen(site: &Site<'_>) -> Option<Rewrite> {
    let condition = site.value(site.input(0)?)?;
    let side = match () {
        () if is_bool(&condition, true) => site.input(1)?,
        () if is_bool(&condition, false) => site.input(2)?,
        () => return None,
    };
    let (given, of_all) = (site.shape(side), site.shape(site.output()));
    let others = [site.input(1)?, site.input(2)?].map(|input| site.shape(input));
    let is_sure = given.is_fully_defined() && given == of_all && others.iter().all(|o| o.is_fully_defined());
    if is_sure { Rewrite::same(side) } else { None }
}

/// A number in each of the types that rules know.
struct Number {
    float: f32,
    whole: u8,
}

struct Numbers {
    zero: Number,
    minus_zero: Number,
    one: Number,
}

const NUMBERS: Numbers = Numbers {
    zero: Number { float: 0.0, whole: 0 },
    minus_zero: Number { float: -0.0, whole: 0 },
    one: Number { float: 1.0, whole: 1 },
};

/// Whether all elements, of which there are some, are the number. Complex ones never are: their products have more
/// terms.
fn all(value: &Tensor, number: &Number) -> bool {
    let Number { float, whole } = *number;
    match value.dtype() {
        DType::Float => all_are(value, float),
        DType::Double => all_are(value, f64::from(float)),
        DType::Half => all_are(value, f16::from_f32(float)),
        DType::BFloat16 => all_are(value, bf16::from_f32(float)),
        DType::Int8 => all_are(value, whole as i8),
        DType::Int16 => all_are(value, i16::from(whole)),
        DType::Int32 => all_are(value, i32::from(whole)),
        DType::Int64 => all_are(value, i64::from(whole)),
        DType::UInt8 => all_are(value, whole),
        DType::UInt16 => all_are(value, u16::from(whole)),
        DType::UInt32 => all_are(value, u32::from(whole)),
        DType::UInt64 => all_are(value, u64::from(whole)),
        _ => false,
    }
}

/// Bit by bit.
fn all_are<T: crate::dtype::Element>(value: &Tensor, wanted: T) -> bool {
    let (Ok(values), wanted) = (value.values::<T>(), bytemuck::bytes_of(&wanted)) else { return false };
    (1..=MOST_ELEMENTS).contains(&values.len()) && values.iter().all(|v| bytemuck::bytes_of(v) == wanted)
}
