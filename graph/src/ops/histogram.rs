//! Counting of values in bins, and search for the insertion positions of values in sorted bounds.

use super::constant::scalar;
use super::unary::same_shape;
use super::{Gradient, OpDef};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Bucketize",
        inputs: &["input: T"],
        outputs: &["output: int32"],
        attrs: &["T: {int32, int64, float, double}", "boundaries: list(float)"],
        infer: same_shape,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "HistogramFixedWidth",
        inputs: &["values: T", "value_range: T", "nbins: int32"],
        outputs: &["out: dtype"],
        attrs: &["T: {int32, int64, float, double}", "dtype: {int32, int64} = int32"],
        infer: |infer| {
            let bins = size(infer, 2)?;
            infer.set(0, PartialShape::vector(bins));
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "Bincount",
        inputs: &["arr: int32", "size: int32", "weights: T"],
        outputs: &["bins: T"],
        attrs: &["T: {int32, int64, float, double}"],
        infer: |infer| {
            let bins = size(infer, 1)?;
            infer.set(0, PartialShape::vector(bins));
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DenseBincount",
        inputs: &["input: Tidx", "size: Tidx", "weights: T"],
        outputs: &["output: T"],
        attrs: &["Tidx: {int32, int64}", "T: {int32, int64, float, double}", "binary_output: bool = false"],
        infer: dense,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "LowerBound",
        inputs: &["sorted_inputs: T", "values: T"],
        outputs: &["output: out_type"],
        attrs: &["T: type", "out_type: {int32, int64} = int32"],
        infer: as_values,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "UpperBound",
        inputs: &["sorted_inputs: T", "values: T"],
        outputs: &["output: out_type"],
        attrs: &["T: type", "out_type: {int32, int64} = int32"],
        infer: as_values,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

fn size(infer: &Infer<'_>, input: usize) -> Result<Dim> {
    Ok(scalar(infer, input)?.and_then(|size| usize::try_from(size).ok()))
}

fn dense(infer: &mut Infer<'_>) -> Result<()> {
    let bins = size(infer, 1)?;
    match infer.input(0).dims() {
        None => {}
        Some(&[rows, _]) => infer.set(0, [rows, bins]),
        Some(dims) if dims.len() < 2 => infer.set(0, PartialShape::vector(bins)),
        Some(dims) => crate::invalid!("Shape must be at most rank 2 but is rank {}", dims.len()),
    }
    Ok(())
}

fn as_values(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(0, 2)?;
    let values = infer.input_of_rank(1, 2)?;
    infer.set(0, values);
    Ok(())
}
