//! Kernels of datasets that combine elements into batches or windows, or split batches.

use crate::objects::dataset::argument::{boolean, dataset, dataset_kernel, integer, spec, tensors};
use crate::objects::dataset::batch::{batch, unbatch};
use crate::objects::dataset::padded_batch::padded_batch;
use crate::objects::dataset::rebatch::{rebatch, split};
use crate::objects::dataset::sparse_batch::dense_to_sparse_batch;
use crate::objects::dataset::window::{Windowing, sliding_window, window};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::{PartialShape, Tensor};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("BatchDataset", &[], |init| {
        dataset_kernel(init, |ctx| batch(dataset(ctx, 0)?, batch_size(ctx)?, false, None))
    }),
    KernelDef::of("BatchDatasetV2", &[], |init| {
        dataset_kernel(init, |ctx| {
            batch(dataset(ctx, 0)?, batch_size(ctx)?, boolean(ctx, 2, "drop_remainder")?, None)
        })
    }),
    KernelDef::of("ParallelBatchDataset", &[], |init| {
        dataset_kernel(init, |ctx| {
            let calls = integer(ctx, 2, "num_parallel_calls")?;
            batch(dataset(ctx, 0)?, batch_size(ctx)?, boolean(ctx, 3, "drop_remainder")?, Some(calls))
        })
    }),
    KernelDef::of("RebatchDataset", &[], replicated),
    KernelDef::of("ExperimentalRebatchDataset", &[], replicated),
    KernelDef::of("RebatchDatasetV2", &[], |init| {
        let spec = spec(init)?;
        dataset_kernel(init, move |ctx| {
            let sizes = ctx.input(1)?;
            if sizes.shape().rank() > 1 {
                device::invalid!("`batch_sizes` must be a scalar or a vector.");
            }
            let drop_remainder = boolean(ctx, 2, "drop_remainder")?;
            rebatch(dataset(ctx, 0)?, sizes.values::<i64>()?, drop_remainder, spec.clone())
        })
    }),
    KernelDef::of("PaddedBatchDataset", &[], |init| {
        let shapes = init.attr::<i64>("N")? as usize;
        dataset_kernel(init, move |ctx| {
            let (padded, padding) = padding(ctx, shapes, ctx.num_inputs())?;
            padded_batch(dataset(ctx, 0)?, batch_size(ctx)?, padded, padding, false)
        })
    }),
    KernelDef::of("PaddedBatchDatasetV2", &[], |init| {
        let shapes = init.attr::<i64>("N")? as usize;
        dataset_kernel(init, move |ctx| {
            let last = ctx.num_inputs() - 1;
            let (padded, padding) = padding(ctx, shapes, last)?;
            let drop_remainder = boolean(ctx, last, "drop_remainder")?;
            padded_batch(dataset(ctx, 0)?, batch_size(ctx)?, padded, padding, drop_remainder)
        })
    }),
    KernelDef::of("DenseToSparseBatchDataset", &[], sparse_batched),
    KernelDef::of("ExperimentalDenseToSparseBatchDataset", &[], sparse_batched),
    KernelDef::of("UnbatchDataset", &[], unbatched),
    KernelDef::of("ExperimentalUnbatchDataset", &[], unbatched),
    KernelDef::of("WindowDataset", &[], |init| {
        dataset_kernel(init, |ctx| {
            let drop_remainder = boolean(ctx, 4, "drop_remainder")?;
            window(dataset(ctx, 0)?, windowing(ctx, drop_remainder)?)
        })
    }),
    KernelDef::of("SlidingWindowDataset", &[], |init| {
        let drop_remainder = init.attr::<bool>("drop_remainder")?;
        dataset_kernel(init, move |ctx| sliding_window(dataset(ctx, 0)?, windowing(ctx, drop_remainder)?))
    }),
    KernelDef::of("ExperimentalSlidingWindowDataset", &[], |init| {
        dataset_kernel(init, |ctx| sliding_window(dataset(ctx, 0)?, windowing(ctx, true)?))
    }),
];

/// `RebatchDataset`: splits each batch among replicas.
fn replicated(init: &KernelInit<'_>) -> Result<Kernel> {
    let spec = spec(init)?;
    dataset_kernel(init, move |ctx| split(dataset(ctx, 0)?, integer(ctx, 1, "num_replicas")?, spec.clone()))
}

fn batch_size(ctx: &KernelContext<'_>) -> Result<i64> {
    integer(ctx, 1, "batch_size")
}

/// `DenseToSparseBatchDataset`: batches elements of different shapes as sparse tensors.
fn sparse_batched(init: &KernelInit<'_>) -> Result<Kernel> {
    dataset_kernel(init, |ctx| {
        let row = ctx.input(2)?;
        if row.shape().rank() != 1 {
            device::invalid!("row_shape must be a vector");
        }
        let row = PartialShape::from_i64(&row.to_i64s()?)?;
        dense_to_sparse_batch(dataset(ctx, 0)?, batch_size(ctx)?, row)
    })
}

fn unbatched(init: &KernelInit<'_>) -> Result<Kernel> {
    dataset_kernel(init, |ctx| unbatch(dataset(ctx, 0)?))
}

/// Returns the windows that inputs 1 to 3 describe.
fn windowing(ctx: &KernelContext<'_>, drop_remainder: bool) -> Result<Windowing> {
    Ok(Windowing {
        size: integer(ctx, 1, "size")?,
        shift: integer(ctx, 2, "shift")?,
        stride: integer(ctx, 3, "stride")?,
        drop_remainder,
    })
}

/// Returns the padded shapes, in the `count` inputs from input 2 on, and the padding values, in the next inputs before
/// input `end`.
fn padding(ctx: &KernelContext<'_>, count: usize, end: usize) -> Result<(Vec<PartialShape>, Vec<Tensor>)> {
    let shapes = (2..2 + count).map(|i| {
        let shape = ctx.input(i)?;
        if shape.shape().rank() != 1 {
            device::invalid!("All padded shapes must be vectors");
        }
        Ok(PartialShape::from_i64(&shape.to_i64s()?)?)
    });
    Ok((shapes.collect::<Result<_>>()?, tensors(ctx, 2 + count..end)?))
}
