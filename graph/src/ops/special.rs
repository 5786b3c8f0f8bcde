//! Element-wise special functions of two operands, with broadcasting.

use super::broadcast::{arrived, broadcast, number, reduce_gradients};
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::PartialShape;

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
        name: "Betainc",
        inputs: &["a: T", "b: T", "x: T"],
        outputs: &["z: T"],
        attrs: &["T: {float, double}"],
        infer: infer_beta,
        gradient: Gradient::Defined(beta_gradient),
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

/// Infers the shape of a function of operands that have one shape or are scalars.
fn infer_beta(infer: &mut Infer<'_>) -> Result<()> {
    let mut shape = PartialShape::scalar();
    for i in 0..3 {
        let input = infer.input(i);
        shape = match (shape.rank(), input.rank()) {
            (Some(0), _) => input,
            (_, Some(0)) => shape,
            (None, Some(_)) => input,
            (Some(_), None) => shape,
            _ => shape.merge(&input)?,
        };
    }
    infer.set(0, shape);
    Ok(())
}

/// Gradient of Betainc with respect to `x`, the density of the beta distribution; the parameters have none.
fn beta_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let [a, b, x] = [0, 1, 2].map(|i| forward.input(i));
    let dz = arrived(forward, dz)?;
    let one = number(scope, scope.dtype(x), 1.0)?;
    let log_gamma = |x: Output| scope.op("Lgamma").input(x).output();
    let log_beta = scope.sub(scope.add(log_gamma(a), log_gamma(b)), log_gamma(scope.add(a, b)));
    let log_rest = scope.op("Log1p").input(scope.neg(x)).output();
    let powers = scope.add(
        scope.mul(scope.sub(b, one), log_rest),
        scope.mul(scope.sub(a, one), scope.op("Log").input(x).output()),
    );
    let density = scope.op("Exp").input(scope.sub(powers, log_beta)).output();
    let of_x = reduce_gradients(scope, [forward.output(0), x], [None, Some(scope.mul(dz, density))])?;
    Ok(vec![None, None, of_x[1]])
}

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
