//! Segment sums and means of rows that are gathered by index.

use super::broadcast::arrived;
use super::constant::scalar;
use super::shape::first_only;
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope, SliceIndex};
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

/// The op table row of an op that gathers rows and reduces them by segment.
const SEGMENT_REDUCTION: OpDef = OpDef {
    inputs: &["data: T", "indices: Tidx", "segment_ids: Tsegmentids"],
    outputs: &["output: T"],
    infer: some_rows,
    ..OpDef::NEW
};

/// The op table row of an op that gathers rows and reduces them to `num_segments` segments.
const SEGMENT_REDUCTION_WITH_COUNT: OpDef = OpDef {
    inputs: &["data: T", "indices: Tidx", "segment_ids: Tsegmentids", "num_segments: Tnumsegments"],
    outputs: &["output: T"],
    infer: counted_rows,
    ..OpDef::NEW
};

const GRAD: OpDef = OpDef {
    inputs: &["grad: T", "indices: Tidx", "segment_ids: Tsegmentids", "output_dim0: int32"],
    outputs: &["output: T"],
    attrs: GRADIENTS,
    infer: counted_rows,
    ..OpDef::NEW
};

/// The op table row of a gradient op that returns gradients only for the rows that were gathered.
const GRAD_V2: OpDef = OpDef {
    inputs: &["grad: T", "indices: Tidx", "segment_ids: Tsegmentids", "dense_output_dim0: int32"],
    outputs: &["output: T", "sorted_unique_indices: Tidx"],
    attrs: GRADIENTS,
    infer: picked_rows,
    ..OpDef::NEW
};

const FLOATS: &[&str] = &[
    "T: {bfloat16, half, float, double}",
    "Tidx: {int32, int64} = int32",
    "Tsegmentids: {int32, int64} = int32",
    "sparse_gradient: bool = false",
];

const COUNTED_FLOATS: &[&str] = &[
    "T: {bfloat16, half, float, double}",
    "Tidx: {int32, int64} = int32",
    "Tnumsegments: {int32, int64} = int32",
    "Tsegmentids: {int32, int64} = int32",
    "sparse_gradient: bool = false",
];

const GRADIENTS: &[&str] = &[
    "T: {bfloat16, half, float, double}",
    "Tidx: {int32, int64} = int32",
    "Tsegmentids: {int32, int64} = int32",
];

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "SparseSegmentSum",
        attrs: &[
            "T: realnumbertype",
            "Tidx: {int32, int64} = int32",
            "Tsegmentids: {int32, int64} = int32",
            "sparse_gradient: bool = false",
        ],
        gradient: Gradient::Defined(|scope, forward, dz| back(scope, forward, dz, "SparseSegmentSumGrad")),
        ..SEGMENT_REDUCTION
    },
    OpDef {
        name: "SparseSegmentSumWithNumSegments",
        attrs: &[
            "T: realnumbertype",
            "Tidx: {int32, int64} = int32",
            "Tnumsegments: {int32, int64} = int32",
            "Tsegmentids: {int32, int64} = int32",
            "sparse_gradient: bool = false",
        ],
        gradient: Gradient::Defined(|scope, forward, dz| back(scope, forward, dz, "SparseSegmentSumGrad")),
        ..SEGMENT_REDUCTION_WITH_COUNT
    },
    OpDef { name: "SparseSegmentSumGrad", ..GRAD },
    OpDef { name: "SparseSegmentSumGradV2", ..GRAD_V2 },
    OpDef {
        name: "SparseSegmentMean",
        attrs: FLOATS,
        gradient: Gradient::Defined(|scope, forward, dz| back(scope, forward, dz, "SparseSegmentMeanGrad")),
        ..SEGMENT_REDUCTION
    },
    OpDef {
        name: "SparseSegmentMeanWithNumSegments",
        attrs: COUNTED_FLOATS,
        gradient: Gradient::Defined(|scope, forward, dz| back(scope, forward, dz, "SparseSegmentMeanGrad")),
        ..SEGMENT_REDUCTION_WITH_COUNT
    },
    OpDef { name: "SparseSegmentMeanGrad", ..GRAD },
    OpDef { name: "SparseSegmentMeanGradV2", ..GRAD_V2 },
    OpDef {
        name: "SparseSegmentSqrtN",
        attrs: FLOATS,
        gradient: Gradient::Defined(|scope, forward, dz| back(scope, forward, dz, "SparseSegmentSqrtNGrad")),
        ..SEGMENT_REDUCTION
    },
    OpDef {
        name: "SparseSegmentSqrtNWithNumSegments",
        attrs: COUNTED_FLOATS,
        gradient: Gradient::Defined(|scope, forward, dz| back(scope, forward, dz, "SparseSegmentSqrtNGrad")),
        ..SEGMENT_REDUCTION_WITH_COUNT
    },
    OpDef { name: "SparseSegmentSqrtNGrad", ..GRAD },
    OpDef { name: "SparseSegmentSqrtNGradV2", ..GRAD_V2 },
];

fn some_rows(infer: &mut Infer<'_>) -> Result<()> {
    rows(infer, None)
}

fn counted_rows(infer: &mut Infer<'_>) -> Result<()> {
    let count = scalar(infer, 3)?;
    rows(infer, count)
}

/// Sets the number of output rows to the number of segments.
fn rows(infer: &mut Infer<'_>, count: Option<i64>) -> Result<()> {
    infer.input_of_rank(1, 1)?.merge(&infer.input_of_rank(2, 1)?)?;
    let data = infer.input(0);
    let Some(dims) = data.dims() else { return Ok(()) };
    let Some((_, inner)) = dims.split_first() else {
        crate::invalid!("Shape must be at least rank 1 but is rank 0");
    };
    let count: Dim = count.and_then(|count| usize::try_from(count).ok());
    infer.set(0, PartialShape::of_dims(std::iter::once(count).chain(inner.iter().copied())));
    Ok(())
}

fn picked_rows(infer: &mut Infer<'_>) -> Result<()> {
    rows(infer, None)?;
    infer.set(1, PartialShape::vector(None));
    Ok(())
}

fn back(scope: &Scope, forward: &Forward, dz: &[Option<Output>], op: &str) -> Result<Vec<Option<Output>>> {
    let dz = arrived(forward, dz)?;
    let count = scope.strided_slice(scope.shape_of(forward.input(0)), &[SliceIndex::At(0)]);
    let call = scope.op(op).input(dz).input(forward.input(1)).input(forward.input(2)).input(count);
    Ok(first_only(forward, Some(call.output())))
}
