//! Joining and splitting tensors along an axis.

use super::moved::Mover;
use super::support::{MOVED, allocate};
use crate::device::DeviceTensor;
use crate::error::Result;
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use crate::kernels::cpu::concat::{Cut, Joined, concatenated, split, split_v, stacked, unstacked};
use crate::kernels::cpu::strided::Layout;
use std::ops::Range;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["axis"],
        ..KernelDef::enqueuing("ConcatV2", &[("T", MOVED)], |init| {
            joining(init, |ctx| {
                let count = ctx.num_inputs() - 1;
                Ok((concatenated(ctx, 0..count, count)?, 0..count))
            })
        })
    },
    KernelDef {
        host_memory: &["concat_dim"],
        ..KernelDef::enqueuing("Concat", &[("T", MOVED)], |init| {
            joining(init, |ctx| {
                let count = ctx.num_inputs();
                Ok((concatenated(ctx, 1..count, 0)?, 1..count))
            })
        })
    },
    KernelDef::enqueuing("Pack", &[("T", MOVED)], |init| {
        let axis: i64 = init.attr("axis")?;
        joining(init, move |ctx| Ok((stacked(ctx, axis)?, 0..ctx.num_inputs())))
    }),
    KernelDef::enqueuing("Unpack", &[("T", MOVED)], |init| {
        let axis: i64 = init.attr("axis")?;
        cutting(init, move |ctx| unstacked(ctx, axis))
    }),
    KernelDef {
        host_memory: &["split_dim"],
        ..KernelDef::enqueuing("Split", &[("T", MOVED)], |init| cutting(init, split))
    },
    KernelDef {
        host_memory: &["size_splits", "split_dim"],
        ..KernelDef::enqueuing("SplitV", &[("T", MOVED)], |init| cutting(init, split_v))
    },
];

fn joining(
    init: &KernelInit<'_>,
    plan: impl Fn(&KernelContext<'_>) -> Result<(Joined, Range<usize>)> + Send + Sync + 'static,
) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let mover = Mover::new(init, dtype)?;
    Kernel::sync(move |ctx| {
        let (Joined { shape, prefix, rows }, inputs) = plan(ctx)?;
        // One part that holds everything is passed on.
        if let Some(n) = rows.iter().position(|&r| r > 0)
            && rows[n + 1..].iter().all(|&r| r == 0)
        {
            let out = ctx.take_value(inputs.start + n).reshaped(shape)?;
            ctx.set_output(0, out);
            return Ok(());
        }
        let total: usize = rows.iter().sum();
        let out = allocate(ctx, dtype, shape)?;
        let mut offset = 0;
        for (i, &row) in inputs.zip(&rows) {
            let dims = [prefix, row];
            let to = Layout { offset, strides: [total as isize, 1].as_slice().into() };
            mover.copy(ctx, &dims, (ctx.device_input(i)?, &Layout::packed(&dims)), (&out, &to))?;
            offset += row as isize;
        }
        ctx.set_output(0, out);
        Ok(())
    })
}

fn cutting(
    init: &KernelInit<'_>,
    plan: impl Fn(&KernelContext<'_>) -> Result<Cut> + Send + Sync + 'static,
) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let mover = Mover::new(init, dtype)?;
    Kernel::sync(move |ctx| {
        let cut = plan(ctx)?;
        let input = ctx.take_device_input(cut.input)?;
        if let [size] = cut.sizes[..] {
            let shape = cut.shape(&input.shape, size)?;
            ctx.set_output(0, DeviceTensor { shape, ..input });
            return Ok(());
        }
        let prefix: usize = input.shape[..cut.at].iter().product();
        let suffix: usize = input.shape[cut.at + 1..].iter().product();
        let total = input.shape[cut.at] * suffix;
        let mut offset = 0;
        for (n, &size) in cut.sizes.iter().enumerate() {
            let dims = [prefix, size * suffix];
            let out = allocate(ctx, dtype, cut.shape(&input.shape, size)?)?;
            let from = Layout { offset, strides: [total as isize, 1].as_slice().into() };
            mover.copy(ctx, &dims, (&input, &from), (&out, &Layout::packed(&dims)))?;
            ctx.set_output(n, out);
            offset += dims[1] as isize;
        }
        Ok(())
    })
}
