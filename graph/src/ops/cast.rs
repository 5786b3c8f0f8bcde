//! Conversions between element types, by value (Cast) and by bits (Bitcast).

use super::broadcast::arrived;
use super::{Gradient, OpDef};
use crate::dtype::DType;
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Cast",
        inputs: &["x: SrcT"],
        outputs: &["y: DstT"],
        attrs: &["SrcT: type", "DstT: type", "Truncate: bool = false"],
        infer: super::unary::same_shape,
        gradient: Gradient::Defined(|scope, forward, gradients| {
            let (from, to) = (forward.attr::<DType>("SrcT")?, forward.attr::<DType>("DstT")?);
            if !from.is_differentiable() || !to.is_differentiable() {
                return Ok(vec![None]);
            }
            Ok(vec![Some(scope.cast(arrived(forward, gradients)?, from))])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "Bitcast",
        inputs: &["input: T"],
        outputs: &["output: type"],
        attrs: &[
            "T: {bfloat16, half, float, double, int64, int32, uint8, uint16, uint32, uint64, int8, int16, complex64, complex128, qint8, quint8, qint16, quint16, qint32}",
            "type: {bfloat16, half, float, double, int64, int32, uint8, uint16, uint32, uint64, int8, int16, complex64, complex128, qint8, quint8, qint16, quint16, qint32}",
        ],
        infer: bitcast_shape,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

/// Infers the shape of Bitcast. A smaller output type adds an axis; for a larger output type, the elements along the
/// last axis are joined to one element, and the axis is removed.
fn bitcast_shape(infer: &mut Infer<'_>) -> Result<()> {
    let (from, to) = (infer.attr::<DType>("T")?, infer.attr::<DType>("type")?);
    let shape = infer.input(0);
    let (Some(from_size), Some(to_size), Some(dims)) = (from.size(), to.size(), shape.dims()) else {
        return Ok(());
    };
    let mut dims: Vec<Dim> = dims.to_vec();
    if from_size > to_size {
        dims.push(Some(from_size / to_size));
    } else if from_size < to_size {
        match dims.pop() {
            Some(None) => {}
            Some(Some(last)) if last == to_size / from_size => {}
            _ => crate::invalid!("Cannot bitcast from {} to {}", from.number(), to.number()),
        }
    }
    infer.set(0, PartialShape::of_dims(dims));
    Ok(())
}
