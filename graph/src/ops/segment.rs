//! Segment sums, means, products, minima and maxima: a segment is the set of rows with the same id.

use super::constant::scalar;
use super::shape::first_only;
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope, SliceIndex};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::PartialShape;

const UNSORTED_NUMBERS: &[&str] =
    &["T: numbertype", "Tindices: {int16, int32, int64}", "Tnumsegments: {int32, int64} = int32"];
const UNSORTED_PRODUCT: &[&str] =
    &["T: numbertype", "Tindices: {int32, int64}", "Tnumsegments: {int32, int64} = int32"];
const UNSORTED_REAL: &[&str] =
    &["T: realnumbertype", "Tindices: {int32, int64}", "Tnumsegments: {int32, int64} = int32"];
const SORTED_NUMBERS: &[&str] = &["T: numbertype", "Tindices: {int32, int64}"];
const SORTED_REAL: &[&str] = &["T: realnumbertype", "Tindices: {int32, int64}"];

const UNSORTED: OpDef = OpDef {
    inputs: &["data: T", "segment_ids: Tindices", "num_segments: Tnumsegments"],
    outputs: &["output: T"],
    infer: unsorted,
    ..OpDef::NEW
};

const SORTED: OpDef = OpDef {
    inputs: &["data: T", "segment_ids: Tindices"],
    outputs: &["output: T"],
    attrs: SORTED_NUMBERS,
    infer: sorted,
    ..OpDef::NEW
};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "UnsortedSegmentSum",
        attrs: UNSORTED_NUMBERS,
        gradient: Gradient::Defined(|scope, forward, dz| {
            let back = |dz| gather_or_zero(scope, dz, forward.input(1));
            Ok(first_only(forward, dz[0].map(back)))
        }),
        ..UNSORTED
    },
    OpDef {
        name: "UnsortedSegmentMax",
        attrs: UNSORTED_REAL,
        gradient: Gradient::Defined(extreme_gradient),
        ..UNSORTED
    },
    OpDef {
        name: "UnsortedSegmentMin",
        attrs: UNSORTED_REAL,
        gradient: Gradient::Defined(extreme_gradient),
        ..UNSORTED
    },
    OpDef {
        name: "UnsortedSegmentProd",
        attrs: UNSORTED_PRODUCT,
        gradient: Gradient::Defined(product_gradient),
        ..UNSORTED
    },
    OpDef {
        name: "SegmentSum",
        gradient: Gradient::Defined(|scope, forward, dz| {
            let back = |dz| scope.gather(dz, forward.input(1), 0);
            Ok(first_only(forward, dz[0].map(back)))
        }),
        ..SORTED
    },
    OpDef { name: "SegmentMean", gradient: Gradient::Defined(mean_gradient), ..SORTED },
    OpDef { name: "SegmentMax", attrs: SORTED_REAL, gradient: Gradient::Defined(extreme_gradient), ..SORTED },
    OpDef { name: "SegmentMin", attrs: SORTED_REAL, gradient: Gradient::Defined(extreme_gradient), ..SORTED },
    OpDef { name: "SegmentProd", gradient: Gradient::Defined(product_gradient), ..SORTED },
];

fn unsorted(infer: &mut Infer<'_>) -> Result<()> {
    let (data, ids) = (infer.input(0), infer.input(1));
    infer.input_of_rank(2, 0)?;
    let segments = scalar(infer, 2)?;
    if let Some(segments) = segments
        && segments < 0
    {
        crate::invalid!("Input num_segments == {segments} must not be negative.");
    }
    let (Some(dims), Some(ids)) = (data.dims(), ids.dims()) else { return Ok(()) };
    let Some(rows) = dims.get(..ids.len()) else {
        crate::invalid!("data.shape = {data} does not start with segment_ids.shape = {}", infer.input(1));
    };
    PartialShape::of_dims(rows.iter().copied()).merge(&PartialShape::of_dims(ids.iter().copied()))?;
    let first = segments.and_then(|s| usize::try_from(s).ok());
    infer.set(0, PartialShape::of_dims(std::iter::once(first).chain(dims[ids.len()..].iter().copied())));
    Ok(())
}

fn sorted(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(1, 1)?;
    let data = infer.input(0);
    let Some(dims) = data.dims() else { return Ok(()) };
    if dims.is_empty() {
        crate::invalid!("Shape must be at least rank 1 but is rank 0");
    }
    infer.set(0, PartialShape::of_dims(std::iter::once(None).chain(dims[1..].iter().copied())));
    Ok(())
}

fn cast(scope: &Scope, x: Output, from: DType, to: DType) -> Output {
    scope.op("Cast").input(x).attr("SrcT", from).attr("DstT", to).output()
}

/// Returns the shape of `ids` followed by ones, up to the rank of `x`.
fn row_shape(scope: &Scope, x: Output, ids: Output) -> Output {
    let sizes = scope.shape_of(ids);
    let ones = match (scope.shape(x).rank(), scope.shape(ids).rank()) {
        (Some(x), Some(ids)) => scope.constant_vector(&vec![1i32; x.saturating_sub(ids)]),
        _ => {
            let more = scope.sub(scope.rank_of(x), scope.rank_of(ids));
            scope.fill(scope.reshape(more, &[1]), scope.constant(1i32))
        }
    };
    scope.concat(&[sizes, ones], 0)
}

/// Returns the rows of `x` at `ids`; zeros for negative ids, which select no row.
fn gather_or_zero(scope: &Scope, x: Output, ids: Output) -> Output {
    let zero = scope.zeros_like(ids);
    let rows = scope.gather(x, scope.maximum(ids, zero), 0);
    let named = scope.op("GreaterEqual").input(ids).input(zero).output();
    let named = scope.op("Reshape").input(named).input(row_shape(scope, rows, ids)).output();
    scope.select(named, rows, scope.zeros_like(rows))
}

/// Returns the number of segments: the op's count input if it has one, otherwise the number of rows of its output.
fn segments(scope: &Scope, forward: &Forward) -> Output {
    match forward.inputs.get(2) {
        Some(&count) => count,
        None => scope.strided_slice(scope.shape_of(forward.output(0)), &[SliceIndex::At(0)]),
    }
}

/// Gradient of a segment minimum or maximum: `dz` divided equally among the elements that equal the result.
fn extreme_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(first_only(forward, None)) };
    let (data, ids) = (forward.input(0), forward.input(1));
    let zero = scope.zeros_like(ids);
    let rows = scope.gather(forward.output(0), scope.maximum(ids, zero), 0);
    let named = scope.op("GreaterEqual").input(ids).input(zero).output();
    let named = scope.op("Reshape").input(named).input(row_shape(scope, rows, ids)).output();
    let equal = scope.op("Equal").input(data).input(rows).output();
    let chosen = scope.op("LogicalAnd").input(equal).input(named).output();
    let dtype = scope.dtype(dz);
    let ones = cast(scope, chosen, DType::Bool, dtype);
    let count = scope.unsorted_segment_sum(ones, ids, segments(scope, forward));
    let share = gather_or_zero(scope, scope.div(dz, count), ids);
    Ok(first_only(forward, Some(scope.select(chosen, share, scope.zeros_like(share)))))
}

/// Gradient of a segment product: `dz` times the product of the segment's other elements. Without zeros in the segment,
/// the product of the other elements is the result divided by the element. If one element is zero, its gradient uses
/// the product of the non-zero elements; with several zeros all gradients are 0.
fn product_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(first_only(forward, None)) };
    let (data, ids, count) = (forward.input(0), forward.input(1), segments(scope, forward));
    let is_zero = scope.op("Equal").input(data).input(scope.zeros_like(data)).output();
    let zeros = scope.unsorted_segment_sum(cast(scope, is_zero, DType::Bool, DType::Int32), ids, count);
    let several = scope.op("Greater").input(zeros).input(scope.ones_like(zeros)).output();
    let dz = scope.select(several, scope.zeros_like(dz), dz);
    let without_zeros = scope.select(is_zero, scope.ones_like(data), data);
    let call = scope.op("UnsortedSegmentProd").input(without_zeros).input(ids).input(count);
    let product_of_rest = call.output();
    let clipped = scope.maximum(ids, scope.zeros_like(ids));
    let product = scope.gather(forward.output(0), clipped, 0);
    let rest = scope.gather(product_of_rest, clipped, 0);
    let partial = scope.select(is_zero, rest, scope.div(product, data));
    Ok(first_only(forward, Some(scope.mul(gather_or_zero(scope, dz, ids), partial))))
}

fn mean_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(first_only(forward, None)) };
    let (data, ids) = (forward.input(0), forward.input(1));
    let one = cast(scope, scope.constant(1i32), DType::Int32, scope.dtype(dz));
    let ones = scope.fill(row_shape(scope, data, ids), one);
    let counts = scope.op("SegmentSum").input(ones).input(ids).output();
    Ok(first_only(forward, Some(scope.gather(scope.div(dz, counts), ids, 0))))
}
