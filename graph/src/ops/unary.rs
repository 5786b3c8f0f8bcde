//! Element-wise functions of one operand, and the element-wise ops of their gradients.

use super::broadcast::{arrived, number};
use super::{Gradient, GradientFn, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;

/// Builds a gradient from `|scope, x, y, dy| gradient of x`. For complex numbers, `x` and `y` are the conjugates,
/// because the gradient of an analytic function contains the conjugate of its slope.
macro_rules! gradient {
    (|$s:ident, $x:ident, $y:ident, $dy:ident| $value:expr) => {{
        const GRADIENT: GradientFn = |$s: &Scope, forward: &Forward, gradients: &[Option<Output>]| {
            let ($x, $y) = ($s.conj(forward.input(0)), $s.conj(forward.output(0)));
            let $dy = arrived(forward, gradients)?;
            let _ = ($x, $y, $dy);
            Ok(vec![Some($value)])
        };
        Gradient::Defined(GRADIENT)
    }};
}

pub(super) use gradient;

/// Like `gradient!`, for a gradient op that conjugates its input itself, so `y` is the node's output unchanged.
macro_rules! gradient_op {
    (|$s:ident, $y:ident, $dy:ident| $value:expr) => {{
        const GRADIENT: GradientFn = |$s: &Scope, forward: &Forward, gradients: &[Option<Output>]| {
            let $y = forward.output(0);
            let $dy = arrived(forward, gradients)?;
            Ok(vec![Some($value)])
        };
        Gradient::Defined(GRADIENT)
    }};
}

/// Builds the gradient of a gradient op `c = f(a, b)` from `|scope, a, b, c, dc| (gradient of a, gradient of b)`.
macro_rules! second_gradient {
    (|$s:ident, $a:ident, $b:ident, $c:ident, $dc:ident| $value:expr) => {{
        const GRADIENT: GradientFn = |$s: &Scope, forward: &Forward, gradients: &[Option<Output>]| {
            let ($a, $b) = ($s.conj(forward.input(0)), forward.input(1));
            let $c = forward.output(0);
            let $dc = arrived(forward, gradients)?;
            let _ = ($b, $c);
            let (da, db): (Output, Output) = $value;
            Ok(vec![Some(da), Some(db)])
        };
        Gradient::Defined(GRADIENT)
    }};
}

const FLOAT: &[&str] = &["T: {bfloat16, half, float, double}"];
const FLOAT_COMPLEX: &[&str] = &["T: {bfloat16, half, float, double, complex64, complex128}"];
const SIGNED: &[&str] = &["T: {bfloat16, half, float, double, int8, int16, int32, int64}"];
const SIGNED_COMPLEX: &[&str] =
    &["T: {bfloat16, half, float, double, int8, int16, int32, int64, complex64, complex128}"];
const INTEGERS: &[&str] = &["T: {int8, int16, int32, int64, uint8, uint16, uint32, uint64}"];

/// Returns the op table row of an op with one operand.
pub(super) const fn row(name: &'static str, attrs: &'static [&'static str], gradient: Gradient) -> OpDef {
    OpDef { name, inputs: &["x: T"], outputs: &["y: T"], attrs, infer: same_shape, gradient, ..OpDef::NEW }
}

const fn test(name: &'static str) -> OpDef {
    OpDef { outputs: &["y: bool"], ..row(name, FLOAT, Gradient::Leaf) }
}

/// Returns the op table row of an op that computes a gradient from the output `y` of another op and the gradient `dy`
/// of that output.
const fn gradient_row(name: &'static str, gradient: Gradient) -> OpDef {
    OpDef { inputs: &["y: T", "dy: T"], outputs: &["z: T"], ..row(name, FLOAT_COMPLEX, gradient) }
}

const RECIPROCAL: Gradient = gradient_op!(|s, y, dy| s.op("ReciprocalGrad").input(y).input(dy).output());

const RECIPROCAL_GRAD: Gradient = second_gradient!(|s, a, b, c, dc| {
    let da = s.mul(s.mul(s.mul(dc, number(s, s.dtype(dc), -2.0)?), b), a);
    (da, s.op("ReciprocalGrad").input(a).input(dc).output())
});

pub(super) const OPS: &[OpDef] = &[
    row("Neg", SIGNED_COMPLEX, gradient!(|s, x, y, dy| s.neg(dy))),
    row("Abs", SIGNED, gradient!(|s, x, y, dy| s.mul(dy, s.sign(x)))),
    row("Sign", SIGNED_COMPLEX, gradient!(|s, x, y, dy| s.op("ZerosLike").input(dy).output())),
    row("Exp", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.mul(dy, y))),
    row("Expm1", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.mul(dy, s.exp(x)))),
    row("Log", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.mul(dy, s.reciprocal(x)))),
    row("Log1p", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.mul(dy, s.reciprocal(plus(s, 1.0, x)?)))),
    row("Sqrt", FLOAT_COMPLEX, gradient_op!(|s, y, dy| s.op("SqrtGrad").input(y).input(dy).output())),
    row("Rsqrt", FLOAT_COMPLEX, gradient_op!(|s, y, dy| s.op("RsqrtGrad").input(y).input(dy).output())),
    row(
        "Square",
        &[
            "T: {bfloat16, half, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, complex64, complex128}",
        ],
        gradient!(|s, x, y, dy| s.mul(dy, s.mul(number(s, s.dtype(x), 2.0)?, x))),
    ),
    row("Reciprocal", SIGNED_COMPLEX, RECIPROCAL),
    row("Inv", SIGNED_COMPLEX, RECIPROCAL),
    row("Floor", FLOAT, Gradient::Leaf),
    row("Ceil", FLOAT, Gradient::Leaf),
    row("Round", SIGNED_COMPLEX, Gradient::Leaf),
    row("Rint", FLOAT, gradient!(|s, x, y, dy| s.op("ZerosLike").input(y).output())),
    row("Sin", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.mul(dy, s.cos(x)))),
    row("Cos", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.mul(s.neg(dy), s.sin(x)))),
    row("Tan", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.mul(s.square(s.reciprocal(s.cos(x))), dy))),
    row("Asin", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.mul(dy, arc_slope(s, x)?))),
    row("Acos", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.neg(s.mul(dy, arc_slope(s, x)?)))),
    row("Atan", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.mul(dy, s.reciprocal(plus(s, 1.0, s.square(x))?)))),
    row("Sinh", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.mul(dy, s.cosh(x)))),
    row("Cosh", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.mul(dy, s.sinh(x)))),
    row("Asinh", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.div(dy, s.cosh(y)))),
    row("Acosh", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.div(dy, s.sinh(y)))),
    row(
        "Atanh",
        FLOAT_COMPLEX,
        gradient!(|s, x, y, dy| s.mul(dy, s.reciprocal(plus(s, 1.0, s.neg(s.square(x)))?))),
    ),
    row("Erf", FLOAT, gradient!(|s, x, y, dy| bell(s, x, dy, std::f64::consts::FRAC_2_SQRT_PI)?)),
    row("Erfc", FLOAT, gradient!(|s, x, y, dy| bell(s, x, dy, -std::f64::consts::FRAC_2_SQRT_PI)?)),
    row("Lgamma", FLOAT, gradient!(|s, x, y, dy| s.mul(dy, s.digamma(x)))),
    row(
        "Digamma",
        FLOAT,
        gradient!(|s, x, y, dy| {
            let order = number(s, s.dtype(x), 1.0)?;
            s.mul(dy, s.op("Polygamma").input(order).input(x).output())
        }),
    ),
    test("IsNan"),
    test("IsInf"),
    test("IsFinite"),
    row("Invert", INTEGERS, Gradient::Leaf),
    OpDef { outputs: &["y: uint8"], ..row("PopulationCount", INTEGERS, Gradient::Leaf) },
    row("Tanh", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.op("TanhGrad").input(y).input(dy).output())),
    row("Sigmoid", FLOAT_COMPLEX, gradient!(|s, x, y, dy| s.op("SigmoidGrad").input(y).input(dy).output())),
    gradient_row(
        "SqrtGrad",
        second_gradient!(|s, a, b, c, dc| {
            let part = s.div(dc, a);
            (s.neg(s.mul(part, c)), s.mul(number(s, s.dtype(dc), 0.5)?, part))
        }),
    ),
    gradient_row(
        "RsqrtGrad",
        second_gradient!(|s, a, b, c, dc| {
            let da = s.mul(s.mul(s.mul(number(s, s.dtype(dc), -1.5)?, dc), b), s.square(a));
            (da, s.op("RsqrtGrad").input(a).input(dc).output())
        }),
    ),
    gradient_row("ReciprocalGrad", RECIPROCAL_GRAD),
    gradient_row("InvGrad", RECIPROCAL_GRAD),
    gradient_row(
        "TanhGrad",
        second_gradient!(|s, a, b, c, dc| {
            let da = s.mul(s.mul(s.mul(dc, number(s, s.dtype(dc), -2.0)?), b), a);
            (da, s.op("TanhGrad").input(a).input(dc).output())
        }),
    ),
    gradient_row(
        "SigmoidGrad",
        second_gradient!(|s, a, b, c, dc| {
            let part = s.mul(dc, b);
            let da = s.sub(part, s.mul(s.mul(number(s, s.dtype(dc), 2.0)?, part), a));
            (da, s.op("SigmoidGrad").input(a).input(dc).output())
        }),
    ),
];

/// Gives the output the first input's shape.
pub(super) fn same_shape(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.input(0);
    infer.set(0, shape);
    Ok(())
}

fn plus(scope: &Scope, value: f64, x: Output) -> Result<Output> {
    Ok(scope.add(number(scope, scope.dtype(x), value)?, x))
}

/// Returns `1 / sqrt(1 - x^2)`.
fn arc_slope(scope: &Scope, x: Output) -> Result<Output> {
    let rest = plus(scope, 1.0, scope.neg(scope.square(x)))?;
    Ok(scope.reciprocal(scope.sqrt(rest)))
}

/// Returns `dy * factor * exp(-x^2)`.
fn bell(scope: &Scope, x: Output, dy: Output, factor: f64) -> Result<Output> {
    let factor = number(scope, scope.dtype(dy), factor)?;
    Ok(scope.mul(scope.mul(factor, scope.exp(scope.neg(scope.square(x)))), dy))
}
