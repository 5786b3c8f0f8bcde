//! Element-wise Bessel functions of orders 0 and 1: `J` and `Y`, the modified `I` and `K`, and the versions scaled by
//! an exponential (`e`), which do not overflow.

use super::broadcast::{arrived, number};
use super::unary::{gradient, row};
use super::{Gradient, GradientFn, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;

const FLOAT: &[&str] = &["T: {bfloat16, half, float, double}"];

pub(super) const OPS: &[OpDef] = &[
    row("BesselI0", FLOAT, gradient!(|s, x, y, dy| s.mul(dy, of(s, "BesselI1", x)))),
    row(
        "BesselI0e",
        FLOAT,
        gradient!(|s, x, y, dy| s.mul(dy, s.sub(of(s, "BesselI1e", x), s.mul(s.sign(x), y)))),
    ),
    row(
        "BesselI1",
        FLOAT,
        gradient!(|s, x, y, dy| {
            let slope = s.sub(of(s, "BesselI0", x), s.div(y, x));
            s.mul(dy, half_at_zero(s, x, slope)?)
        }),
    ),
    row(
        "BesselI1e",
        FLOAT,
        gradient!(|s, x, y, dy| {
            let less = s.mul(y, s.add(s.sign(x), s.reciprocal(x)));
            s.mul(dy, half_at_zero(s, x, s.sub(of(s, "BesselI0e", x), less))?)
        }),
    ),
    row("BesselJ0", FLOAT, gradient!(|s, x, y, dy| s.neg(s.mul(dy, of(s, "BesselJ1", x))))),
    row(
        "BesselJ1",
        FLOAT,
        gradient!(|s, x, y, dy| {
            let slope = s.sub(of(s, "BesselJ0", x), s.div(y, x));
            s.mul(dy, half_at_zero(s, x, slope)?)
        }),
    ),
    row("BesselY0", FLOAT, gradient!(|s, x, y, dy| s.neg(s.mul(dy, of(s, "BesselY1", x))))),
    row("BesselY1", FLOAT, gradient!(|s, x, y, dy| s.mul(dy, s.sub(of(s, "BesselY0", x), s.div(y, x))))),
    row("BesselK0", FLOAT, gradient!(|s, x, y, dy| s.neg(s.mul(dy, of(s, "BesselK1", x))))),
    row("BesselK0e", FLOAT, gradient!(|s, x, y, dy| s.mul(dy, s.sub(y, of(s, "BesselK1e", x))))),
    row(
        "BesselK1",
        FLOAT,
        gradient!(|s, x, y, dy| s.neg(s.mul(dy, s.add(of(s, "BesselK0", x), s.div(y, x))))),
    ),
    row(
        "BesselK1e",
        FLOAT,
        gradient!(|s, x, y, dy| {
            let rest = s.sub(number(s, s.dtype(x), 1.0)?, s.reciprocal(x));
            s.mul(dy, s.sub(s.mul(y, rest), of(s, "BesselK0e", x)))
        }),
    ),
];

fn of(scope: &Scope, op: &str, x: Output) -> Output {
    scope.op(op).input(x).output()
}

/// Returns `slope` with one half in place of its elements where `x` is 0, for slopes whose formula divides by `x`.
fn half_at_zero(scope: &Scope, x: Output, slope: Output) -> Result<Output> {
    let at_zero = scope.op("Equal").input(x).input(number(scope, scope.dtype(x), 0.0)?).output();
    let half = number(scope, scope.dtype(x), 0.5)?;
    Ok(scope.op("SelectV2").input(at_zero).input(half).input(slope).output())
}
