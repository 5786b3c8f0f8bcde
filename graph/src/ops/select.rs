//! Selection of elements by a condition.

use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Select",
        inputs: &["condition: bool", "t: T", "e: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: select,
        gradient: Gradient::Defined(|scope, forward, dz| {
            let Some(dz) = dz[0] else { return Ok(vec![None; 3]) };
            let (condition, zeros) = (forward.input(0), scope.zeros_like(dz));
            let choose = |t, e| scope.op("Select").input(condition).input(t).input(e).output();
            Ok(vec![None, Some(choose(dz, zeros)), Some(choose(zeros, dz))])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "SelectV2",
        inputs: &["condition: bool", "t: T", "e: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: |infer| {
            let shape = PartialShape::broadcast(&infer.input(1), &infer.input(2))?;
            let shape = PartialShape::broadcast(&infer.input(0), &shape)?;
            infer.set(0, shape);
            Ok(())
        },
        gradient: Gradient::Defined(|scope, forward, dz| {
            let Some(dz) = dz[0] else { return Ok(vec![None; 3]) };
            let (condition, zeros) = (forward.input(0), scope.zeros_like(dz));
            let then = scope.sum_to_shape_of(scope.select(condition, dz, zeros), forward.input(1));
            let other = scope.sum_to_shape_of(scope.select(condition, zeros, dz), forward.input(2));
            Ok(vec![None, Some(then), Some(other)])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "ClipByValue",
        inputs: &["t: T", "clip_value_min: T", "clip_value_max: T"],
        outputs: &["output: T"],
        attrs: &["T: numbertype"],
        infer: super::constant::same,
        gradient: Gradient::Defined(clip_gradient),
        ..OpDef::NEW
    },
];

fn select(infer: &mut Infer<'_>) -> Result<()> {
    let (condition, values) = (infer.input(0), infer.input(1).merge(&infer.input(2))?);
    infer.set(0, values.clone());
    let (Some(chosen), Some(dims)) = (condition.dims(), values.dims()) else { return Ok(()) };
    match chosen.len() {
        0 => Ok(()),
        // A condition that is a vector selects whole rows.
        1 if dims.len() != 1 => {
            if dims.is_empty() {
                crate::invalid!("'then' must be at least a vector, but saw shape: {values}");
            }
            PartialShape::vector(dims[0]).merge(&condition)?;
            Ok(())
        }
        _ => {
            let shape = values.merge(&condition)?;
            infer.set(0, shape);
            Ok(())
        }
    }
}

/// Gradient of ClipByValue: the bounds get the gradients of the elements that they replaced.
fn clip_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(vec![None; 3]) };
    let (x, low, high) = (forward.input(0), forward.input(1), forward.input(2));
    let zeros = scope.zeros_like(dz);
    let below = scope.op("Less").input(x).input(low).output();
    let above = scope.op("Greater").input(x).input(high).output();
    let outside = scope.op("LogicalOr").input(below).input(above).output();
    let dx = scope.select(outside, zeros, dz);
    let dlow = scope.sum_to_shape_of(scope.select(below, dz, zeros), low);
    let dhigh = scope.sum_to_shape_of(scope.select(above, dz, zeros), high);
    Ok(vec![Some(dx), Some(dlow), Some(dhigh)])
}
