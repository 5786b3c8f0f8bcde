//! RaggedGather: rows of a ragged tensor, selected by index.

use super::splits::check_sorted;
use crate::numeric::copied::CopiedElement;
use crate::plan::shape::integers;
use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Result, invalid};
use graph::{DType, ResourceHandle, Shape, Tensor, Variant};
use std::ops::Range;

pub(super) fn make(init: &KernelInit<'_>) -> Result<Kernel> {
    let levels: i64 = init.attr("PARAMS_RAGGED_RANK")?;
    let (levels, splits) = (levels as usize, init.input_type(0));
    Kernel::sync(move |ctx| gather(ctx, levels, splits))
}

/// Returns a tensor of `shape` with the rows of `values` in `ranges`, concatenated: as bytes if the elements have a
/// fixed size, and otherwise as objects.
fn joined(values: &Tensor, ranges: &[Range<usize>], shape: Shape) -> Result<Tensor> {
    let size: usize = shape[1..].iter().product();
    match values.dtype() {
        DType::String => joined_as::<Bytes>(values, ranges, size, shape),
        DType::Resource => joined_as::<ResourceHandle>(values, ranges, size, shape),
        DType::Variant => joined_as::<Variant>(values, ranges, size, shape),
        dtype => joined_as::<u8>(values, ranges, size * dtype.size().unwrap_or(1), shape),
    }
}

/// Returns the rows of `values` in `ranges`, concatenated; each row has `size` elements of type `E`.
fn joined_as<E: CopiedElement>(
    values: &Tensor,
    ranges: &[Range<usize>],
    size: usize,
    shape: Shape,
) -> Result<Tensor> {
    E::build(values.dtype(), shape, |out| {
        let from = E::view(values)?;
        let mut at = 0;
        for range in ranges {
            let elements = &from[range.start * size..range.end * size];
            out[at..at + elements.len()].clone_from_slice(elements);
            at += elements.len();
        }
        Ok(())
    })
}

fn gather(ctx: &mut KernelContext<'_>, levels: usize, splits_type: DType) -> Result<()> {
    let (values, indices) = (ctx.input(levels)?, ctx.input(levels + 1)?);
    let outer = indices.shape().rank();
    if ctx.num_outputs() != outer + levels {
        invalid!("OUTPUT_RAGGED_RANK must be equal to PARAMS_RAGGED_RANK + indices.ndims - 1");
    }
    let Some((&rows, inner)) = values.shape().split_first() else {
        invalid!("params.rank must be nonzero");
    };
    let splits = (0..levels).map(|i| Ok(ctx.input(i)?.to_i64s()?)).collect::<Result<Vec<_>>>()?;
    let count = ctx.input(0)?.shape().first().map_or(-1, |&n| n as i64 - 1);
    let picked = indices.to_i64s()?;
    if let Some((at, index)) = picked.iter().enumerate().find(|(_, i)| !(0..count).contains(*i)) {
        invalid!("indices[{at}] = {index} is not in [0, {count})");
    }
    for (level, level_splits) in splits.iter().enumerate() {
        let below = splits.get(level + 1).map_or(rows, |next| next.len().saturating_sub(1));
        check_sorted(level_splits, below)?;
    }
    // The axes of the indices become ragged levels whose rows have equal lengths.
    let mut out_splits: Vec<Vec<i64>> = Vec::with_capacity(outer + levels);
    let mut blocks = 1i64;
    for axis in 1..outer {
        blocks *= indices.shape()[axis - 1] as i64;
        let length = indices.shape()[axis] as i64;
        out_splits.push((0..=blocks).map(|block| block * length).collect());
    }
    let mut ranges: Vec<Range<usize>> = picked.iter().map(|&i| i as usize..i as usize + 1).collect();
    for (level, splits) in splits.iter().enumerate() {
        let mut ends = vec![0i64];
        for range in &mut ranges {
            for row in range.clone() {
                ends.push(ends[ends.len() - 1] + splits[row + 1] - splits[row]);
            }
            *range = splits[range.start] as usize..splits[range.end] as usize;
        }
        // With a scalar index, the gathered row has no splits of its outer level.
        if level > 0 || outer > 0 {
            out_splits.push(ends);
        }
    }
    let total = ranges.iter().try_fold(0usize, |sum, range| sum.checked_add(range.len()));
    let Some(total) = total else { invalid!("the picked rows have too many values together") };
    let mut dims = vec![total];
    dims.extend_from_slice(inner);
    let out = joined(values, &ranges, Shape::new(&dims)?)?;
    for (i, splits) in out_splits.iter().enumerate() {
        ctx.set_output(i, integers(splits_type, splits)?);
    }
    ctx.set_output(ctx.num_outputs() - 1, out);
    Ok(())
}
