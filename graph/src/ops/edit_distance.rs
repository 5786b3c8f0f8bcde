//! Edit distances between sequences.

use super::{Gradient, OpDef};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[OpDef {
    name: "EditDistance",
    inputs: &[
        "hypothesis_indices: int64",
        "hypothesis_values: T",
        "hypothesis_shape: int64",
        "truth_indices: int64",
        "truth_values: T",
        "truth_shape: int64",
    ],
    outputs: &["output: float"],
    attrs: &["normalize: bool = true", "T: type"],
    infer: all_but_last,
    gradient: Gradient::Leaf,
    ..OpDef::NEW
}];

/// Sets the output's size along each axis except the last to the larger of the two sparse tensors' sizes.
fn all_but_last(infer: &mut Infer<'_>) -> Result<()> {
    for i in [0, 3] {
        infer.input_of_rank(i, 2)?;
        infer.input_of_rank(i + 1, 1)?;
        infer.input_of_rank(i + 2, 1)?;
    }
    let (hypothesis, truth) = (infer.value_as_shape(2)?, infer.value_as_shape(5)?);
    let (Some(a), Some(b)) = (hypothesis.dims(), truth.dims()) else { return Ok(()) };
    if a.len() != b.len() {
        crate::invalid!("hypothesis_shape and truth_shape should have equal numbers of elements");
    }
    let larger = a.iter().zip(b).map(|(a, b)| a.zip(*b).map(|(a, b)| a.max(b)));
    infer.set(0, PartialShape::of_dims(larger.take(a.len().saturating_sub(1))));
    Ok(())
}
