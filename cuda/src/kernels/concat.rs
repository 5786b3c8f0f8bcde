//! Joining and splitting tensors along an axis.

use super::moved::{PACK, SOURCE};
use super::support::{MOVED, allocate, function, launch, moved_type_name, read, write};
use crate::engine::{Arguments, Function};
use device::DeviceTensor;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::DType;
use kernels::concat::{Cut, Joined, concatenated, split, split_v, stacked, unstacked};
use std::ops::Range;
use std::sync::Arc;

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
    let mover = SideBySide::new(init, dtype)?;
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
        let out = allocate(ctx, dtype, shape)?;
        let parts = inputs.map(|i| ctx.device_input(i)).collect::<Result<Vec<_>>>()?;
        mover.run(ctx, Way::Join, &out, prefix, &parts)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn cutting(
    init: &KernelInit<'_>,
    plan: impl Fn(&KernelContext<'_>) -> Result<Cut> + Send + Sync + 'static,
) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let mover = SideBySide::new(init, dtype)?;
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
        mover.run(ctx, Way::Cut, &input, prefix, &parts.iter().collect::<Vec<_>>())?;
        for (n, part) in parts.into_iter().enumerate() {
            ctx.set_output(n, part);
        }
        Ok(())
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Join,
    Cut,
}

/// How many parts one launch moves: `MOST_PARTS` of the `.cu` file.
const MOST_PARTS: usize = 16;

/// Moves matrices of as many rows, side by side, into one, or out of it.
pub(super) struct SideBySide(Arc<Function>);

impl SideBySide {
    pub(super) fn new(init: &KernelInit<'_>, dtype: DType) -> Result<SideBySide> {
        Ok(SideBySide(function(init, &SOURCE, format!("side_by_side<{}>", moved_type_name(dtype)?))?))
    }

    pub(super) fn run(
        &self,
        ctx: &KernelContext<'_>,
        way: Way,
        joined: &DeviceTensor,
        rows: usize,
        parts: &[&DeviceTensor],
    ) -> Result<()> {
        let columns = |part: &DeviceTensor| part.shape.num_elements() / rows.max(1);
        let there: Vec<&DeviceTensor> = parts.iter().copied().filter(|part| columns(part) > 0).collect();
        let total: usize = there.iter().map(|part| columns(part)).sum();
        let pack = PACK / joined.dtype.size().unwrap_or(PACK);
        let has_packs = pack > 1 && there.iter().all(|part| columns(part) % pack == 0);
        let unit = if has_packs { pack } else { 1 };
        let mut first = 0;
        for some in there.chunks(MOST_PARTS) {
            let (mut addresses, mut ends) = ([0; MOST_PARTS], [0; MOST_PARTS]);
            let mut width = 0;
            for (i, part) in some.iter().enumerate() {
                let at = if way == Way::Join { read(part)? } else { write(part)? };
                width += columns(part) / unit;
                (addresses[i], ends[i]) = (at.0 as i64, width as i64);
            }
            let arguments = Arguments::new()
                .address(if way == Way::Join { write(joined)? } else { read(joined)? })
                .count(rows * width)
                .count(total / unit)
                .count(first)
                .flag(way == Way::Join)
                .flag(has_packs)
                .structure([some.len() as i64].into_iter().chain(addresses).chain(ends));
            launch(ctx, &self.0, rows * width, arguments)?;
            first += width;
        }
        Ok(())
    }
}
