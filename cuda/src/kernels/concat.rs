//! Joining and splitting tensors along an axis.

use super::copy::{PACK, SOURCE};
use super::support::{COPIED, allocate, copied_type_name, function, launch, read, write};
use crate::engine::{Arguments, Function};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::DType;
use kernels::plan::concat::{
    ConcatLayout, SplitPlan, concat_layout, split, split_plan, split_v, stack_layout,
};
use std::ops::Range;
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["axis"],
        ..KernelDef::enqueuing("ConcatV2", &[("T", COPIED)], |init| {
            make_join(init, |ctx| {
                let count = ctx.num_inputs() - 1;
                Ok((concat_layout(ctx, 0..count, count)?, 0..count))
            })
        })
    },
    KernelDef {
        host_memory: &["concat_dim"],
        ..KernelDef::enqueuing("Concat", &[("T", COPIED)], |init| {
            make_join(init, |ctx| {
                let count = ctx.num_inputs();
                Ok((concat_layout(ctx, 1..count, 0)?, 1..count))
            })
        })
    },
    KernelDef::enqueuing("Pack", &[("T", COPIED)], |init| {
        let axis: i64 = init.attr("axis")?;
        make_join(init, move |ctx| Ok((stack_layout(ctx, axis)?, 0..ctx.num_inputs())))
    }),
    KernelDef::enqueuing("Unpack", &[("T", COPIED)], |init| {
        let axis: i64 = init.attr("axis")?;
        make_split(init, move |ctx| split_plan(ctx, axis))
    }),
    KernelDef {
        host_memory: &["split_dim"],
        ..KernelDef::enqueuing("Split", &[("T", COPIED)], |init| make_split(init, split))
    },
    KernelDef {
        host_memory: &["size_splits", "split_dim"],
        ..KernelDef::enqueuing("SplitV", &[("T", COPIED)], |init| make_split(init, split_v))
    },
];

/// Makes a kernel that joins inputs along an axis; `plan` returns the layout of the result, and the indices of
/// the inputs to join.
fn make_join(
    init: &KernelInit<'_>,
    plan: impl Fn(&KernelContext<'_>) -> Result<(ConcatLayout, Range<usize>)> + Send + Sync + 'static,
) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let mover = ColumnMover::new(init, dtype)?;
    Kernel::sync(move |ctx| {
        let (ConcatLayout { shape, prefix, rows }, inputs) = plan(ctx)?;
        // If all inputs except one are empty, the memory of that input becomes the output.
        if let Some(n) = rows.iter().position(|&r| r > 0)
            && rows[n + 1..].iter().all(|&r| r == 0)
        {
            let out = ctx.take_value(inputs.start + n).reshaped(shape)?;
            ctx.set_output(0, out);
            return Ok(());
        }
        let out = allocate(ctx, dtype, shape)?;
        let parts = inputs.map(|i| ctx.device_input(i)).collect::<Result<Vec<_>>>()?;
        mover.run(ctx, MoveDirection::Join, &out, prefix, &parts)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes a kernel that splits an input along an axis; `plan` returns the input's index, the axis and the sizes
/// of the parts.
fn make_split(
    init: &KernelInit<'_>,
    plan: impl Fn(&KernelContext<'_>) -> Result<SplitPlan> + Send + Sync + 'static,
) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let mover = ColumnMover::new(init, dtype)?;
    Kernel::sync(move |ctx| {
        let cut = plan(ctx)?;
        let input = ctx.take_device_input(cut.input)?;
        if let [size] = cut.sizes[..] {
            let shape = cut.shape(&input.shape, size)?;
            ctx.set_output(0, DeviceTensor { shape, ..input });
            return Ok(());
        }
        let prefix: usize = input.shape[..cut.at].iter().product();
        let part = |&size: &usize| allocate(ctx, dtype, cut.shape(&input.shape, size)?);
        let parts = cut.sizes.iter().map(part).collect::<Result<Vec<_>>>()?;
        mover.run(ctx, MoveDirection::Split, &input, prefix, &parts.iter().collect::<Vec<_>>())?;
        for (n, part) in parts.into_iter().enumerate() {
            ctx.set_output(n, part);
        }
        Ok(())
    })
}

/// The direction of a copy between one tensor and several parts of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MoveDirection {
    /// The parts are copied into the tensor.
    Join,
    /// The tensor is copied into the parts.
    Split,
}

/// Largest number of parts in one launch: `MOST_PARTS` of the `.cu` file.
const MOST_PARTS: usize = 16;

/// The kernel that joins matrices with equal numbers of rows side by side into one matrix, or splits such a
/// matrix.
pub(super) struct ColumnMover(Arc<Function>);

impl ColumnMover {
    /// Loads the kernel for a dtype.
    pub(super) fn new(init: &KernelInit<'_>, dtype: DType) -> Result<ColumnMover> {
        Ok(ColumnMover(function(init, &SOURCE, format!("side_by_side<{}>", copied_type_name(dtype)?))?))
    }

    /// Copies `parts` into `joined`, or `joined` into `parts`; all tensors are treated as matrices of `rows`
    /// rows.
    pub(super) fn run(
        &self,
        ctx: &KernelContext<'_>,
        direction: MoveDirection,
        joined: &DeviceTensor,
        rows: usize,
        parts: &[&DeviceTensor],
    ) -> Result<()> {
        let columns = |part: &DeviceTensor| part.shape.num_elements() / rows.max(1);
        let nonempty: Vec<&DeviceTensor> = parts.iter().copied().filter(|part| columns(part) > 0).collect();
        let total: usize = nonempty.iter().map(|part| columns(part)).sum();
        let pack = PACK / joined.dtype.size().unwrap_or(PACK);
        let has_packs = pack > 1 && nonempty.iter().all(|part| columns(part) % pack == 0);
        let unit = if has_packs { pack } else { 1 };
        let mut first = 0;
        for group in nonempty.chunks(MOST_PARTS) {
            let (mut addresses, mut ends) = ([0; MOST_PARTS], [0; MOST_PARTS]);
            let mut width = 0;
            for (i, part) in group.iter().enumerate() {
                let at = if direction == MoveDirection::Join { read(part)? } else { write(part)? };
                width += columns(part) / unit;
                (addresses[i], ends[i]) = (at.0 as i64, width as i64);
            }
            let arguments = Arguments::new()
                .address(if direction == MoveDirection::Join { write(joined)? } else { read(joined)? })
                .count(rows * width)
                .count(total / unit)
                .count(first)
                .flag(direction == MoveDirection::Join)
                .flag(has_packs)
                .structure([group.len() as i64].into_iter().chain(addresses).chain(ends));
            launch(ctx, &self.0, rows * width, arguments)?;
            first += width;
        }
        Ok(())
    }
}
