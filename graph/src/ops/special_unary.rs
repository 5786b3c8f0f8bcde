//! Element-wise special functions of one operand: integrals without an elementary form, and inverses of the error
//! function.

use super::broadcast::{arrived, number};
use super::unary::{gradient, row};
use super::{Gradient, GradientFn, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
use std::f64::consts::{FRAC_PI_2, PI};

const FLOAT: &[&str] = &["T: {bfloat16, half, float, double}"];

pub(super) const OPS: &[OpDef] = &[
    row(
        "Dawsn",
        FLOAT,
        gradient!(|s, x, y, dy| {
            let (one, two) = (number(s, s.dtype(x), 1.0)?, number(s, s.dtype(x), 2.0)?);
            s.mul(dy, s.sub(one, s.mul(two, s.mul(x, y))))
        }),
    ),
    row("Expint", FLOAT, gradient!(|s, x, y, dy| s.mul(dy, s.div(s.exp(x), x)))),
    row("FresnelCos", FLOAT, gradient!(|s, x, y, dy| s.mul(dy, s.cos(scaled_square(s, x, FRAC_PI_2)?)))),
    row("FresnelSin", FLOAT, gradient!(|s, x, y, dy| s.mul(dy, s.sin(scaled_square(s, x, FRAC_PI_2)?)))),
    row(
        "Spence",
        FLOAT,
        gradient!(|s, x, y, dy| {
            let (one, minus) = (number(s, s.dtype(x), 1.0)?, number(s, s.dtype(x), -1.0)?);
            let slope = s.div(s.op("Log").input(x).output(), s.sub(one, x));
            let at_one = s.op("Equal").input(x).input(one).output();
            s.mul(dy, s.op("SelectV2").input(at_one).input(minus).input(slope).output())
        }),
    ),
    row(
        "Ndtri",
        FLOAT,
        gradient!(|s, x, y, dy| {
            let factor = number(s, s.dtype(x), (2.0 * PI).sqrt())?;
            s.mul(dy, s.mul(factor, s.exp(scaled_square(s, y, 0.5)?)))
        }),
    ),
    row(
        "Erfinv",
        FLOAT,
        gradient!(|s, x, y, dy| {
            let factor = number(s, s.dtype(x), 0.5 * PI.sqrt())?;
            s.mul(dy, s.mul(factor, s.exp(scaled_square(s, y, 1.0)?)))
        }),
    ),
];

fn scaled_square(scope: &Scope, x: Output, factor: f64) -> Result<Output> {
    Ok(scope.mul(number(scope, scope.dtype(x), factor)?, scope.square(x)))
}
