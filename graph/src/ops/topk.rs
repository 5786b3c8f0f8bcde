//! The largest elements along the last axis.

use super::constant::scalar;
use super::shape::first_only;
use super::{Gradient, OpDef};
use crate::builder::{Forward, Pick, Scope};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

pub(super) const OPS: &[OpDef] = &[
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

/// What came back goes to the places of the largest, counted over all rows.
fn top_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(first_only(forward, None)) };
    let input = scope.shape_of(forward.input(0));
    let mut indices = forward.output(1);
    let index = scope.dtype(indices);
    if index != DType::Int32 {
        indices = scope.op("Cast").input(indices).attr("SrcT", index).attr("DstT", DType::Int32).output();
    }
    let last = scope.strided_slice(input, &[Pick::At(-1)]);
    let found = scope.strided_slice(scope.shape_of(indices), &[Pick::At(-1)]);
    let rows = scope.pack(&[scope.constant(-1i32), found], 0);
    let places = scope.op("Reshape").input(indices).input(rows).output();
    let count = scope.size_of(forward.input(0));
    let first = scope.range(scope.constant(0i32), count, last);
    let places = scope.add(places, scope.expand_dims(first, -1));
    let places = scope.reshape(places, &[-1, 1]);
    let flat = scope.scatter_nd(places, scope.reshape(dz, &[-1]), scope.reshape(count, &[1]));
    Ok(first_only(forward, Some(scope.reshape_like(flat, forward.input(0)))))
}
