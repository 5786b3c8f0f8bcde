//! Plans of DynamicPartition and DynamicStitch.

use crate::plan::gather::position;
use device::kernel::KernelContext;
use device::{Error, Result, invalid};
use graph::Shape;
use smallvec::SmallVec;

/// The distribution of the rows of a tensor to partitions.
#[derive(Debug)]
pub struct RowPartitions {
    /// For each partition, the indices of its rows.
    pub members: Vec<Vec<usize>>,
    /// The shape of a row.
    pub inner: SmallVec<[usize; 6]>,
}

/// Returns the rows of input 0 that belong to each output of `DynamicPartition`; input 1 has the partition of each row.
pub fn row_partitions(ctx: &KernelContext<'_>) -> Result<RowPartitions> {
    let (data, partitions) = (ctx.shape(0)?, ctx.input(1)?);
    let (rank, num) = (partitions.shape().rank(), ctx.num_outputs());
    if data.get(..rank) != Some(partitions.shape().dims()) {
        invalid!(
            "data.shape must start with partitions.shape, got data.shape = {data}, partitions.shape = {}",
            partitions.shape()
        );
    }
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); num];
    for (i, &part) in partitions.values::<i32>()?.iter().enumerate() {
        match usize::try_from(part).ok().and_then(|p| members.get_mut(p)) {
            Some(rows) => rows.push(i),
            None => {
                let at = position("partitions", partitions.shape(), i);
                invalid!("{at} = {part} is not in [0, {num})")
            }
        }
    }
    Ok(RowPartitions { members, inner: data[rank..].into() })
}

/// Returns the shape of `count` rows of the shape `inner`.
pub fn rows_shape(count: usize, inner: &[usize]) -> Result<Shape> {
    let mut dims: SmallVec<[usize; 6]> = SmallVec::from_slice(&[count]);
    dims.extend_from_slice(inner);
    Ok(Shape::new(&dims)?)
}

/// The plan of a `DynamicStitch`. If several input rows have the same index, the last of them is copied.
#[derive(Debug)]
pub struct StitchPlan {
    pub shape: Shape,
    /// The number of elements per row.
    pub row: usize,
    /// For each output row, the input and the row of the input that is copied to it; `None` if no input row has the
    /// index. Empty if rows have no elements.
    pub rows: Vec<Option<(usize, usize)>>,
}

/// Returns the plan of `DynamicStitch`. The first half of the inputs are indices, and the second half are the rows that
/// belong to the indices.
pub fn stitch_plan(ctx: &KernelContext<'_>) -> Result<StitchPlan> {
    let count = ctx.num_inputs() / 2;
    let (first_indices, first) = (ctx.shape(0)?, ctx.shape(count)?);
    let Some(inner) = first.get(first_indices.rank()..) else {
        invalid!("data[0].shape = {first} does not start with indices[0].shape = {first_indices}");
    };
    let mut most = -1i32;
    for i in 0..count {
        let (indices, data) = (ctx.input(i)?, ctx.shape(count + i)?);
        let rank = indices.shape().rank();
        if data.get(..rank) != Some(indices.shape().dims()) {
            invalid!("data[{i}].shape = {data} does not start with indices[{i}].shape = {}", indices.shape());
        }
        if data[rank..] != *inner {
            invalid!(
                "Need data[0].shape[{}:] = data[{i}].shape[{rank}:], got data[0].shape = {first}, data[{i}].shape = {data}, indices[0].shape = {first_indices}, indices[{i}].shape = {}",
                first_indices.rank(),
                indices.shape()
            );
        }
        most = indices.values::<i32>()?.iter().copied().fold(most, i32::max);
    }
    if most == i32::MAX {
        invalid!("Expected a non-negative size, got {}", most.wrapping_add(1));
    }
    let (shape, row) = (rows_shape((most + 1) as usize, inner)?, inner.iter().product::<usize>());
    let len = if row == 0 { 0 } else { shape[0] };
    let bytes = len as u128 * size_of::<Option<(usize, usize)>>() as u128;
    if bytes > u128::from(graph::tensor::memory_limit()) {
        let text = format!("OOM when stitching {len} rows: {bytes} bytes");
        return Err(Error::new(graph::Code::ResourceExhausted, text));
    }
    let mut rows = vec![None; len];
    for i in 0..count {
        for (n, &index) in ctx.input(i)?.values::<i32>()?.iter().enumerate() {
            let at = usize::try_from(index)
                .map_err(|_| Error::invalid(format!("indices[{n}] is out of range")))?;
            if row > 0 {
                rows[at] = Some((i, n));
            }
        }
    }
    Ok(StitchPlan { shape, row, rows })
}
