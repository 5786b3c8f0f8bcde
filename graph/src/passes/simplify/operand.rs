//! Rules for element-wise ops with a constant operand, such as a zero to add, a one to multiply by, or a constant
//! condition. For floats, a rule applies only if it holds for every value, including negative zeros and NaNs.

use super::Simplification::Constants;
use super::classes::keeps_shape;
use super::rule::{Input, Rewrite, Rule};
use super::site::Site;
use crate::dtype::{Bool8, DType};
use crate::graph::Output;
use crate::tensor::Tensor;
use half::{bf16, f16};

pub(super) const RULES: &[Rule] = &[
    Rule { ops: &["Mul"], kind: Constants, apply: |site| neutral_either(site, is_one) },
    Rule { ops: &["Add", "AddV2"], kind: Constants, apply: |site| neutral_either(site, is_neutral_summand) },
    Rule {
        ops: &["BitwiseOr", "BitwiseXor"],
        kind: Constants,
        apply: |site| neutral_either(site, |value| all_equal(value, &NUMBERS.zero)),
    },
    Rule {
        ops: &["LogicalAnd"],
        kind: Constants,
        apply: |site| neutral_either(site, |value| is_bool(value, true)),
    },
    Rule {
        ops: &["LogicalOr"],
        kind: Constants,
        apply: |site| neutral_either(site, |value| is_bool(value, false)),
    },
    Rule {
        ops: &["Sub"],
        kind: Constants,
        apply: |site| neutral_second(site, |value| all_equal(value, &NUMBERS.zero)),
    },
    Rule { ops: &["Sub"], kind: Constants, apply: zero_minus },
    Rule {
        ops: &["Div", "DivNoNan", "FloorDiv", "Pow", "RealDiv", "TruncateDiv"],
        kind: Constants,
        apply: divided_by_one,
    },
    Rule { ops: &["Mul"], kind: Constants, apply: product_with_zero },
    Rule { ops: &["Pow"], kind: Constants, apply: pow_to_square },
    Rule { ops: &["Select", "SelectV2"], kind: Constants, apply: selected_side },
];

/// The length above which the elements of a constant are not inspected.
const MAX_ELEMENTS: usize = 4096;

type Test = fn(&Tensor) -> bool;

/// Rewrites the node to one operand, if the other operand is a constant for which `is_neutral` holds.
fn neutral_either(site: &Site<'_>, is_neutral: Test) -> Option<Rewrite> {
    neutral_second(site, is_neutral).or_else(|| {
        let (constant, other) = (site.input(0)?, site.input(1)?);
        if is_neutral_operand(site, other, constant, is_neutral) { Rewrite::same(other) } else { None }
    })
}

/// Rewrites the node to its first operand, if the second operand is a constant for which `is_neutral` holds.
fn neutral_second(site: &Site<'_>, is_neutral: Test) -> Option<Rewrite> {
    let (other, constant) = (site.input(0)?, site.input(1)?);
    if is_neutral_operand(site, other, constant, is_neutral) { Rewrite::same(other) } else { None }
}

/// Returns whether `is_neutral` holds for the constant, and broadcasting with the constant does not change the shape of
/// the other operand.
fn is_neutral_operand(site: &Site<'_>, other: Output, constant: Output, is_neutral: Test) -> bool {
    keeps_shape(&site.shape(other), &site.shape(constant))
        && site.value(constant).is_some_and(|value| is_neutral(&value))
}

fn is_one(value: &Tensor) -> bool {
    all_equal(value, &NUMBERS.one)
}

/// Returns whether adding the constant changes nothing. For floats only negative zero qualifies, because adding a
/// positive zero turns a negative zero into a positive one.
fn is_neutral_summand(value: &Tensor) -> bool {
    let zero = if value.dtype().is_floating() { &NUMBERS.minus_zero } else { &NUMBERS.zero };
    all_equal(value, zero)
}

fn is_bool(value: &Tensor, wanted: bool) -> bool {
    all_bits_equal(value, Bool8::from(wanted))
}

/// Rewrites a division by 1, or a power with exponent 1, to the operand. Division ops that round are excluded for
/// floats, because they do not preserve an infinite operand.
fn divided_by_one(site: &Site<'_>) -> Option<Rewrite> {
    let rounds = matches!(site.op(), "FloorDiv" | "TruncateDiv");
    if rounds && !site.dtype()?.is_integer() { None } else { neutral_second(site, is_one) }
}

/// Rewrites `0 - x` to a negation, for signed integers only: for a float zero the sign would differ.
fn zero_minus(site: &Site<'_>) -> Option<Rewrite> {
    let (zero, x) = (site.input(0)?, site.input(1)?);
    let dtype = site.dtype()?;
    if !dtype.is_signed_integer()
        || !is_neutral_operand(site, x, zero, |value| all_equal(value, &NUMBERS.zero))
    {
        return None;
    }
    Rewrite::other("Neg", [("T", dtype.into())], [Input::From(x)])
}

/// Rewrites a product of integers with zero to zeros, if the shape is known and small.
fn product_with_zero(site: &Site<'_>) -> Option<Rewrite> {
    let dtype = site.dtype().filter(|dtype| dtype.is_integer())?;
    let is_zero = |input| site.value(input).is_some_and(|value| all_equal(&value, &NUMBERS.zero));
    if !is_zero(site.input(1)?) && !is_zero(site.input(0)?) {
        return None;
    }
    let shape = site.shape(site.output()).as_shape().filter(|shape| shape.num_elements() <= MAX_ELEMENTS)?;
    Rewrite::values(vec![Tensor::zeros(dtype, shape).ok()])
}

/// Rewrites a power with exponent 2 to `Square`, for integers only: the power of a float is rounded differently.
fn pow_to_square(site: &Site<'_>) -> Option<Rewrite> {
    let (x, two) = (site.input(0)?, site.input(1)?);
    let dtype = site.dtype().filter(|dtype| dtype.is_integer())?;
    let is_two = |value: &Tensor| value.to_i64s().is_ok_and(|values| values.iter().all(|v| *v == 2));
    if site.shape(two).num_elements()? > MAX_ELEMENTS || !is_neutral_operand(site, x, two, is_two) {
        return None;
    }
    Rewrite::other("Square", [("T", dtype.into())], [Input::From(x)])
}

/// Rewrites a selection to one of its two operands, if all elements of the constant condition are equal, and that
/// operand is not broadcast.
fn selected_side(site: &Site<'_>) -> Option<Rewrite> {
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

/// A number that constants are compared with, as a float and as an integer.
struct Number {
    float: f32,
    whole: u8,
}

/// The numbers that constant operands are compared with.
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

/// Returns whether the tensor is not empty and all its elements equal the number. Returns `false` for complex tensors:
/// a complex product adds several real products, which may change zeros, infinities and NaNs even if a factor is 1.
fn all_equal(value: &Tensor, number: &Number) -> bool {
    let Number { float, whole } = *number;
    match value.dtype() {
        DType::Float => all_bits_equal(value, float),
        DType::Double => all_bits_equal(value, f64::from(float)),
        DType::Half => all_bits_equal(value, f16::from_f32(float)),
        DType::BFloat16 => all_bits_equal(value, bf16::from_f32(float)),
        DType::Int8 => all_bits_equal(value, whole as i8),
        DType::Int16 => all_bits_equal(value, i16::from(whole)),
        DType::Int32 => all_bits_equal(value, i32::from(whole)),
        DType::Int64 => all_bits_equal(value, i64::from(whole)),
        DType::UInt8 => all_bits_equal(value, whole),
        DType::UInt16 => all_bits_equal(value, u16::from(whole)),
        DType::UInt32 => all_bits_equal(value, u32::from(whole)),
        DType::UInt64 => all_bits_equal(value, u64::from(whole)),
        _ => false,
    }
}

/// Returns whether all elements are equal to `wanted` bit by bit, for tensors of 1 to [`MAX_ELEMENTS`] elements.
fn all_bits_equal<T: crate::dtype::Element>(value: &Tensor, wanted: T) -> bool {
    let (Ok(values), wanted) = (value.values::<T>(), bytemuck::bytes_of(&wanted)) else { return false };
    (1..=MAX_ELEMENTS).contains(&values.len()) && values.iter().all(|v| bytemuck::bytes_of(v) == wanted)
}
