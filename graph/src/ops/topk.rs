//! The largest elements along the last axis.

use super::constant::scalar;
use super::shape::first_only;
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope, SliceIndex};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "NthElement",
        inputs: &["input: T", "n: int32"],
        outputs: &["values: T"],
        attrs: &["reverse: bool = false", "T: realnumbertype"],
        infer: |infer| {
            let input = infer.input(0);
            infer.input_of_rank(1, 0)?;
            let Some(dims) = input.dims() else { return Ok(()) };
            let Some((last, rows)) = dims.split_last() else {
                crate::invalid!("Shape must be at least rank 1 but is rank 0");
            };
            if let (Some(last), Some(n)) = (*last, infer.value(1)) {
                let n = n.item::<i32>()?;
                if usize::try_from(n).is_ok_and(|n| n >= last) {
                    crate::invalid!("Input must have last dimension > n = {n} but is {last}");
                }
            }
            infer.set(0, PartialShape::of_dims(rows.iter().copied()));
            Ok(())
        },
        gradient: Gradient::Defined(nth_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "TopKV2",
        inputs: &["input: T", "k: Tk"],
        outputs: &["values: T", "indices: index_type"],
        attrs: &[
            "sorted: bool = true",
            "T: realnumbertype",
            "Tk: {int16, int32, int64} = int32",
            "index_type: {int16, int32, int64} = int32",
        ],
        infer: |infer| {
            infer.input_of_rank(1, 0)?;
            let k = scalar(infer, 1)?;
            top(infer, k)
        },
        gradient: Gradient::Defined(top_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "TopK",
        inputs: &["input: T"],
        outputs: &["values: T", "indices: int32"],
        attrs: &["k: int >= 0", "sorted: bool = true", "T: realnumbertype"],
        infer: |infer| {
            let k: i64 = infer.attr("k")?;
            top(infer, Some(k))
        },
        gradient: Gradient::Defined(top_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "ApproxTopK",
        inputs: &["input: T"],
        outputs: &["values: T", "indices: int32"],
        attrs: &[
            "k: int >= 0",
            "reduction_dimension: int = -1",
            "recall_target: float = 0.95",
            "is_max_k: bool = true",
            "reduction_input_size_override: int = -1",
            "aggregate_to_topk: bool = true",
            "T: {half, bfloat16, float}",
        ],
        infer: super::unknown_shapes,
        ..OpDef::NEW
    },
    OpDef {
        name: "InTopK",
        inputs: &["predictions: float", "targets: T"],
        outputs: &["precision: bool"],
        attrs: &["k: int", "T: {int32, int64} = int32"],
        infer: in_top,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "InTopKV2",
        inputs: &["predictions: float", "targets: T", "k: T"],
        outputs: &["precision: bool"],
        attrs: &["T: {int32, int64} = int32"],
        infer: in_top,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

fn top(infer: &mut Infer<'_>, k: Option<i64>) -> Result<()> {
    if let Some(k) = k
        && k < 0
    {
        crate::invalid!("Need k >= 0, got {k}");
    }
    let k: Dim = k.and_then(|k| usize::try_from(k).ok());
    let input = infer.input(0);
    let Some(dims) = input.dims() else { return Ok(()) };
    let Some((last, rows)) = dims.split_last() else {
        crate::invalid!("input must be >= 1-D, got shape {input}");
    };
    if let (Some(last), Some(k)) = (*last, k)
        && last < k
    {
        crate::invalid!("input must have last dimension >= k = {k} but is {last}");
    }
    infer.set_all(PartialShape::of_dims(rows.iter().copied().chain([k])));
    Ok(())
}

fn in_top(infer: &mut Infer<'_>) -> Result<()> {
    let (predictions, targets) = (infer.input_of_rank(0, 2)?, infer.input_of_rank(1, 1)?);
    let batch = targets.merge(&PartialShape::vector(predictions.dim(0)))?;
    infer.set(0, batch);
    Ok(())
}

/// Gradient of TopK: scatters `dz` into a flat tensor of zeros at the flat indices of the largest elements.
fn top_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(first_only(forward, None)) };
    let input = scope.shape_of(forward.input(0));
    let mut indices = forward.output(1);
    let index = scope.dtype(indices);
    if index != DType::Int32 {
        indices = scope.op("Cast").input(indices).attr("SrcT", index).attr("DstT", DType::Int32).output();
    }
    let last = scope.strided_slice(input, &[SliceIndex::At(-1)]);
    let found = scope.strided_slice(scope.shape_of(indices), &[SliceIndex::At(-1)]);
    let rows = scope.pack(&[scope.constant(-1i32), found], 0);
    let places = scope.op("Reshape").input(indices).input(rows).output();
    let count = scope.size_of(forward.input(0));
    let first = scope.range(scope.constant(0i32), count, last);
    let places = scope.add(places, scope.expand_dims(first, -1));
    let places = scope.reshape(places, &[-1, 1]);
    let flat = scope.scatter_nd(places, scope.reshape(dz, &[-1]), scope.reshape(count, &[1]));
    Ok(first_only(forward, Some(scope.reshape_like(flat, forward.input(0)))))
}

/// Gradient of NthElement: `dz` divided equally among the elements that equal the result.
fn nth_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(first_only(forward, None)) };
    let input = forward.input(0);
    let column = |x: Output| scope.expand_dims(x, -1);
    let equal = scope.op("Equal").input(column(forward.output(0))).input(input).output();
    let equal = scope.op("Cast").input(equal).attr("DstT", scope.dtype(input)).output();
    let count = scope.op("Sum").input(equal).input(scope.constant(-1i32)).output();
    let parts = scope.op("RealDiv").input(equal).input(column(count)).output();
    Ok(first_only(forward, Some(scope.op("Mul").input(parts).input(column(dz)).output())))
}
