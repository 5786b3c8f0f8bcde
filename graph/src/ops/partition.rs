//! Partitioning of rows by number, stitching of partitions into one tensor, and indices of true elements.

use super::shape::first_only;
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "DynamicPartition",
        inputs: &["data: T", "partitions: int32"],
        outputs: &["outputs: num_partitions * T"],
        attrs: &["num_partitions: int >= 1", "T: type"],
        infer: partition,
        gradient: Gradient::Defined(partition_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "DynamicStitch",
        inputs: &["indices: N * int32", "data: N * T"],
        outputs: &["merged: T"],
        attrs: &["N: int >= 1", "T: type"],
        infer: stitch,
        gradient: Gradient::Defined(stitch_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "ParallelDynamicStitch",
        inputs: &["indices: N * int32", "data: N * T"],
        outputs: &["merged: T"],
        attrs: &["N: int >= 1", "T: type"],
        infer: stitch,
        gradient: Gradient::Defined(stitch_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "Where",
        inputs: &["input: T"],
        outputs: &["index: int64"],
        attrs: &[
            "T: {float, double, int32, uint8, int16, int8, complex64, int64, qint8, quint8, qint32, bfloat16, qint16, quint16, uint16, complex128, half, uint32, uint64, bool} = bool",
        ],
        infer: |infer| {
            let rank = infer.input(0).rank();
            infer.set(0, [None, rank]);
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

fn partition(infer: &mut Infer<'_>) -> Result<()> {
    let (data, partitions) = (infer.input(0), infer.input(1));
    let (Some(dims), Some(parts)) = (data.dims(), partitions.dims()) else { return Ok(()) };
    let Some(rows) = dims.get(..parts.len()) else {
        crate::invalid!(
            "data.shape must start with partitions.shape, got data.shape = {data}, partitions.shape = {partitions}"
        );
    };
    PartialShape::of_dims(rows.iter().copied()).merge(&PartialShape::of_dims(parts.iter().copied()))?;
    let out: Vec<Dim> = std::iter::once(None).chain(dims[parts.len()..].iter().copied()).collect();
    infer.set_all(PartialShape::of_dims(out));
    Ok(())
}

fn stitch(infer: &mut Infer<'_>) -> Result<()> {
    let count = infer.num_inputs() / 2;
    let mut rows: Option<i64> = Some(-1);
    let mut row = PartialShape::unknown();
    for i in 0..count {
        rows = match infer.value(i).map(|v| v.to_i64s()).transpose()? {
            Some(indices) => rows.map(|r| indices.into_iter().fold(r, i64::max)),
            None => None,
        };
        let (indices, data) = (infer.input(i), infer.input(count + i));
        let (Some(at), Some(dims)) = (indices.dims(), data.dims()) else { continue };
        let Some(front) = dims.get(..at.len()) else {
            crate::invalid!("data[{i}].shape = {data} does not start with indices[{i}].shape = {indices}");
        };
        PartialShape::of_dims(front.iter().copied()).merge(&indices)?;
        row = row.merge(&PartialShape::of_dims(dims[at.len()..].iter().copied()))?;
    }
    if let Some(dims) = row.dims() {
        let first = rows.and_then(|r| usize::try_from(r + 1).ok());
        infer.set(0, PartialShape::of_dims(std::iter::once(first).chain(dims.iter().copied())));
    }
    Ok(())
}

/// Gradient of DynamicPartition: the row numbers are partitioned like the rows, and DynamicStitch uses the partitioned
/// row numbers to put the gradients back in order.
fn partition_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
) -> Result<Vec<Option<Output>>> {
    let parts = super::concat::with_zeros(scope, forward, dz);
    let partitions = forward.input(1);
    let rows = scope.range(scope.constant(0i32), scope.size_of(partitions), scope.constant(1i32));
    let rows = scope.op("Reshape").input(rows).input(scope.shape_of(partitions)).output();
    let rows = scope.dynamic_partition(rows, partitions, parts.len());
    let stitched = scope.dynamic_stitch(&rows, &parts);
    Ok(first_only(forward, Some(scope.reshape_like(stitched, forward.input(0)))))
}

fn stitch_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let count = forward.inputs.len() / 2;
    let mut grads = vec![None; 2 * count];
    if let Some(dz) = dz[0] {
        for i in 0..count {
            grads[count + i] = Some(scope.gather(dz, forward.input(i), 0));
        }
    }
    Ok(grads)
}
