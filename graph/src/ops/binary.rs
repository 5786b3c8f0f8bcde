//! Arithmetic of two operands, element by element, with broadcasting.

use super::{Gradient, OpDef, Traits};

use crate::error::Result;

use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[OpDef {
    name: "AddV2",
    inputs: &["x: T", "y: T"],
    outputs: &["z: T"],
    attrs: &[
        "T: {bfloat16, half, float, double, uint8, uint16, uint32, uint64, int8, int16, int32, int64, complex64, complex128}",
    ],
    infer: broadcast,
    gradient: Gradient::Defined(|_, _, dz| Ok(vec![dz[0], dz[0]])),
    traits: Traits::AGGREGATE,
    ..OpDef::NEW
}];

/// The broadcast shape of both inputs.
pub(super) fn broadcast(infer: &mut Infer<'_>) -> Result<()> {
    let shape = PartialShape::broadcast(&infer.input(0), &infer.input(1))?;
    infer.set(0, shape);
    Ok(())
}
