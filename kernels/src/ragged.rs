//! Kernels of ragged tensors: ranges of different lengths, gathered rows, and conversion to dense and sparse tensors.

mod dense;
mod gather;
mod range;
pub(crate) mod splits;
pub(crate) mod variant;

use crate::numeric::copied::{COPIED, copied};
use crate::numeric::dispatch::{INDEX, NUMBERS};
use crate::plan::shape::integers;
use crate::sparse::empty_rows;
use crate::sparse_cross::ragged_cross;
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Result, invalid};
use graph::{DType, Shape, Tensor};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("RaggedRange", &[("T", range::TYPES), ("Tsplits", INDEX)], range::make),
    KernelDef::of(
        "RaggedGather",
        &[("Tvalues", COPIED), ("Tindices", INDEX), ("Tsplits", INDEX)],
        gather::make,
    ),
    KernelDef::of("RaggedTensorToSparse", &[("Tsplits", INDEX)], |_| Kernel::sync(to_sparse)),
    KernelDef::of("RaggedTensorToTensor", &[("T", COPIED), ("Tindex", INDEX)], |init| {
        let names: Vec<bytes::Bytes> = init.attr("row_partition_types")?;
        let types = graph::ops::ragged::row_partition_types(&names, init.inputs.len() - 3)?;
        let build = copied!(init.output_type(0), E => Ok(dense::padded::<E> as dense::BuildFn))?;
        Kernel::sync(move |ctx| dense::to_tensor(ctx, &types, build))
    }),
    KernelDef::of("RaggedTensorToVariant", &[("Tvalues", COPIED), ("Tsplits", INDEX)], variant::to_variant),
    KernelDef::of(
        "RaggedTensorFromVariant",
        &[("Tvalues", COPIED), ("Tsplits", INDEX)],
        variant::from_variant,
    ),
    KernelDef::of(
        "RaggedTensorToVariantGradient",
        &[("Tvalues", COPIED), ("Tsplits", INDEX)],
        variant::gradient,
    ),
    KernelDef::of("RaggedFillEmptyRows", &[("T", COPIED)], |_| Kernel::sync(empty_rows::fill_ragged)),
    KernelDef::of("RaggedFillEmptyRowsGrad", &[("T", NUMBERS)], empty_rows::fill_grad),
    KernelDef::of("RaggedCross", &[("out_row_splits_type", INDEX)], ragged_cross),
];

/// Converts a ragged tensor to a sparse one: outputs the indices of the values in row-major order, the values, and the
/// dense shape, in which each ragged axis has the length of its longest row.
fn to_sparse(ctx: &mut KernelContext<'_>) -> Result<()> {
    let levels = ctx.num_inputs() - 1;
    let values = ctx.input(levels)?.clone();
    let splits = (0..levels).map(|i| Ok(ctx.input(i)?.to_i64s()?)).collect::<Result<Vec<_>>>()?;
    let Some((&rows, inner)) = values.shape().split_first() else {
        invalid!("Final value of ragged splits must match the length the corresponding ragged values.");
    };
    for (level, level_splits) in splits.iter().enumerate() {
        let (Some(&first), Some(&last)) = (level_splits.first(), level_splits.last()) else {
            invalid!("ragged splits may not be empty.");
        };
        if first != 0 {
            invalid!("First value of ragged splits must be 0.");
        }
        if let Some(pair) = level_splits.windows(2).find(|pair| pair[1] < pair[0]) {
            invalid!(
                "Ragged splits should be non decreasing, but we got {} followed by {}",
                pair[0],
                pair[1]
            );
        }
        let below = splits.get(level + 1).map_or(rows as i64, |next| next.len() as i64 - 1);
        if last != below {
            invalid!("Final value of ragged splits must match the length the corresponding ragged values.");
        }
    }
    let rank = levels + values.shape().rank();
    let per_row: usize = inner.iter().product();
    let mut indices = Vec::with_capacity(values.num_elements().saturating_mul(rank));
    // For each ragged level, the index of the row that contains the current value.
    let mut at = vec![0usize; levels];
    for row in 0..rows {
        for level in (0..levels).rev() {
            let below = if level + 1 < levels { at[level + 1] } else { row } as i64;
            while splits[level][at[level] + 1] <= below {
                at[level] += 1;
            }
        }
        for element in 0..per_row {
            indices.push(at[0] as i64);
            for level in 0..levels {
                let below = if level + 1 < levels { at[level + 1] } else { row } as i64;
                indices.push(below - splits[level][at[level]]);
            }
            let mut left = per_row;
            let mut rest = element;
            for &size in inner {
                left /= size;
                indices.push((rest / left) as i64);
                rest %= left;
            }
        }
    }
    let longest = |splits: &Vec<i64>| splits.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    let mut shape = vec![splits[0].len() as i64 - 1];
    shape.extend(splits.iter().map(longest));
    shape.extend(inner.iter().map(|&size| size as i64));
    let count = values.num_elements();
    ctx.set_output(0, Tensor::from_slice(&indices, Shape::new(&[count, rank])?)?);
    ctx.set_output(1, values.reshaped(Shape::new(&[count])?)?);
    ctx.set_output(2, integers(DType::Int64, &shape)?);
    Ok(())
}
