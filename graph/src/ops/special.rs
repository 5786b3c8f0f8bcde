//! Element-wise special functions of two operands, with broadcasting.

use super::broadcast::{arrived, broadcast, number, reduce_gradients};
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Zeta",
        inputs: &["x: T", "q: T"],
        outputs: &["z: T"],
        attrs: &["T: {float, double}"],
        infer: broadcast,
        gradient: Gradient::Defined(zeta_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "Polygamma",
        inputs: &["a: T", "x: T"],
        outputs: &["z: T"],
        attrs: &["T: {float, double}"],
        infer: broadcast,
        gradient: Gradient::Defined(polygamma_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "Igamma",
        inputs: &["a: T", "x: T"],
        outputs: &["z: T"],
        attrs: &["T: {bfloat16, half, float, double}"],
        infer: broadcast,
        gradient: Gradient::Defined(lower_gamma_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "IgammaGradA",
        inputs: &["a: T", "x: T"],
        outputs: &["z: T"],
        attrs: &["T: {float, double}"],
        infer: broadcast,
        ..OpDef::NEW
    },
    OpDef {
        name: "Igammac",
        inputs: &["a: T", "x: T"],
        outputs: &["z: T"],
        attrs: &["T: {bfloat16, half, float, double}"],
        infer: broadcast,
        gradient: Gradient::Defined(|scope, forward, dz| {
            let both = lower_gamma_gradient(scope, forward, dz)?;
            Ok(both.into_iter().map(|d| d.map(|d| scope.neg(d))).collect())
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "RandomGammaGrad",
        inputs: &["alpha: T", "sample: T"],
        outputs: &["output: T"],
        attrs: &["T: {float, double}"],
        infer: broadcast,
        ..OpDef::NEW
    },
    OpDef {
        name: "NextAfter",
        inputs: &["x1: T", "x2: T"],
        outputs: &["output: T"],
        attrs: &["T: {double, float} = float"],
        infer: broadcast,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

/// Gradient of Zeta with respect to the second operand; the first operand has none.
fn zeta_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let (x, q, dz) = (forward.input(0), forward.input(1), arrived(forward, dz)?);
    let next = scope.add(x, number(scope, scope.dtype(x), 1.0)?);
    let slope = scope.mul(scope.neg(x), scope.op("Zeta").input(next).input(q).output());
    reduce_gradients(scope, [x, q], [None, Some(scope.mul(dz, slope))])
}

/// Gradient of Igamma: the op IgammaGradA computes the derivative with respect to `a`; the derivative with respect to
/// `x` is the density of the gamma distribution.
fn lower_gamma_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
) -> Result<Vec<Option<Output>>> {
    let (a, x, dz) = (forward.input(0), forward.input(1), arrived(forward, dz)?);
    let of_a = scope.op("IgammaGradA").input(a).input(x).output();
    let less = scope.sub(a, number(scope, scope.dtype(a), 1.0)?);
    let power = scope.mul(less, scope.op("Log").input(x).output());
    let exponent = scope.sub(scope.sub(power, x), scope.op("Lgamma").input(a).output());
    let of_x = scope.op("Exp").input(exponent).output();
    reduce_gradients(scope, [a, x], [Some(scope.mul(dz, of_a)), Some(scope.mul(dz, of_x))])
}

/// Gradient of Polygamma with respect to the second operand; the first operand, the order, has no gradient.
fn polygamma_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
) -> Result<Vec<Option<Output>>> {
    let (n, x, dz) = (forward.input(0), forward.input(1), arrived(forward, dz)?);
    let next = scope.add(n, number(scope, scope.dtype(n), 1.0)?);
    let slope = scope.op("Polygamma").input(next).input(x).output();
    reduce_gradients(scope, [n, x], [None, Some(scope.mul(dz, slope))])
}
