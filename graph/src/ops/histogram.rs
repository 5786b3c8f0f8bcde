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
        name: "SparseBincount",
        inputs: &["indices: int64", "values: Tidx", "dense_shape: int64", "size: Tidx", "weights: T"],
        outputs: &["output: T"],
        attrs: &["Tidx: {int32, int64}", "T: {int32, int64, float, double}", "binary_output: bool = false"],
        infer: |infer| {
            let (bins, shape) = (size(infer, 3)?, infer.value_as_shape(2)?);
            match shape.rank() {
                None => {}
                Some(1) => infer.set(0, PartialShape::vector(bins)),
                Some(_) => infer.set(0, [shape.dim(0), bins]),
            }
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "RaggedBincount",
        inputs: &["splits: int64", "values: Tidx", "size: Tidx", "weights: T"],
        outputs: &["output: T"],
        attrs: &["Tidx: {int32, int64}", "T: {int32, int64, float, double}", "binary_output: bool = false"],
        infer: |infer| {
            let bins = size(infer, 2)?;
            let rows = infer.input_of_rank(0, 1)?.dim(0).and_then(|count| count.checked_sub(1));
            infer.set(0, [rows, bins]);
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DenseCountSparseOutput",
        inputs: &["values: T", "weights: output_type"],
        infer: |infer| {
            let rank = infer.input(0).rank();
            sparse_counts(infer, rank)
        },
        ..COUNT
    },
    OpDef {
        name: "SparseCountSparseOutput",
        inputs: &["indices: int64", "values: T", "dense_shape: int64", "weights: output_type"],
        infer: |infer| {
            // The values of all axes after the first are counted together, so the output has at most two axes.
            let rank = infer.input(2).dim(0).map(|rank| rank.min(2));
            sparse_counts(infer, rank)
        },
        ..COUNT
    },
    OpDef {
        name: "RaggedCountSparseOutput",
        inputs: &["splits: int64", "values: T", "weights: output_type"],
        infer: |infer| sparse_counts(infer, Some(2)),
        ..COUNT
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

/// The op table fields that are common to ops that count values into a sparse tensor.
const COUNT: OpDef = OpDef {
    outputs: &["output_indices: int64", "output_values: output_type", "output_dense_shape: int64"],
    attrs: &[
        "T: {int32, int64}",
        "minlength: int >= -1 = -1",
        "maxlength: int >= -1 = -1",
        "binary_output: bool",
        "output_type: {int32, int64, float, double}",
    ],
    gradient: Gradient::Leaf,
    ..OpDef::NEW
};

/// Sets the shapes of the parts of a sparse tensor of `rank` axes.
fn sparse_counts(infer: &mut Infer<'_>, rank: Dim) -> Result<()> {
    infer.set(0, [None, rank]);
    infer.set(1, PartialShape::vector(None));
    infer.set(2, PartialShape::vector(rank));
    Ok(())
}

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
