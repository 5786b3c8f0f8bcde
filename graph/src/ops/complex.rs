//! Complex numbers: their construction from real and imaginary parts, and their parts and angles.

use super::broadcast::{arrived, broadcast, reduce_gradients};
use super::unary::same_shape;
use super::{Gradient, OpDef};
use crate::builder::Scope;
use crate::dtype::DType;
use crate::graph::Output;

const PARTS: &[&str] = &["T: {complex64, complex128} = complex64", "Tout: {float, double} = float"];

const fn part(name: &'static str, gradient: Gradient) -> OpDef {
    OpDef {
        name,
        inputs: &["input: T"],
        outputs: &["output: Tout"],
        attrs: PARTS,
        infer: same_shape,
        gradient,
        ..OpDef::NEW
    }
}

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Complex",
        inputs: &["real: T", "imag: T"],
        outputs: &["out: Tout"],
        attrs: &["T: {float, double} = float", "Tout: {complex64, complex128} = complex64"],
        infer: broadcast,
        gradient: Gradient::Defined(|scope, forward, gradients| {
            let dz = arrived(forward, gradients)?;
            let (re, im) = (scope.real(dz), scope.imag(dz));
            reduce_gradients(scope, [forward.input(0), forward.input(1)], [Some(re), Some(im)])
        }),
        ..OpDef::NEW
    },
    part(
        "Real",
        Gradient::Defined(|scope, forward, gradients| {
            let dy = arrived(forward, gradients)?;
            Ok(vec![Some(scope.complex(dy, zeros(scope, dy)))])
        }),
    ),
    part(
        "Imag",
        Gradient::Defined(|scope, forward, gradients| {
            let dy = arrived(forward, gradients)?;
            Ok(vec![Some(scope.complex(zeros(scope, dy), dy))])
        }),
    ),
    part(
        "Angle",
        Gradient::Defined(|scope, forward, gradients| {
            let (x, dy) = (forward.input(0), arrived(forward, gradients)?);
            let turned = scope.complex(scope.imag(x), scope.real(x));
            let slope = scope.neg(scope.reciprocal(turned));
            Ok(vec![Some(scope.mul(scope.complex(dy, zeros(scope, dy)), slope))])
        }),
    ),
    OpDef {
        inputs: &["x: T"],
        outputs: &["y: Tout"],
        ..part(
            "ComplexAbs",
            Gradient::Defined(|scope, forward, gradients| {
                let dy = arrived(forward, gradients)?;
                let real = |y: Output| scope.complex(y, zeros(scope, y));
                let direction = scope.mul(real(dy), forward.input(0));
                Ok(vec![Some(scope.div_no_nan(direction, real(forward.output(0))))])
            }),
        )
    },
    OpDef {
        name: "Conj",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: {complex64, complex128, variant} = complex64"],
        infer: same_shape,
        gradient: Gradient::Defined(|scope, forward, gradients| {
            Ok(vec![Some(scope.conj(arrived(forward, gradients)?))])
        }),
        ..OpDef::NEW
    },
];

fn zeros(scope: &Scope, like: Output) -> Output {
    scope.op("ZerosLike").input(like).output()
}

/// Returns the type of the real and imaginary parts of a complex type.
pub(crate) fn part_type(complex: DType) -> DType {
    if complex == DType::Complex128 { DType::Double } else { DType::Float }
}
