//! Joining and splitting tensors along an axis.

use super::moved::{PACK, SOURCE};
use super::support::{MOVED, allocate, function, launch, moved_type_name, read, write};
use crate::cuda::{Arguments, Function};
use crate::device::DeviceTensor;
use crate::error::Result;
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use crate::kernels::cpu::concat::{Cut, Joined, concatenated, split, split_v, stacked, unstacked};
use graph::DType;
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
        let mut parts = Vec::with_capacity(rows.len());
        for (i, &columns) in inputs.zip(&rows) {
            parts.push(Part { tensor: ctx.device_input(i)?.clone(), columns });
        }
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
        let suffix: usize = input.shape[cut.at + 1..].iter().product();
        let mut parts = Vec::with_capacity(cut.sizes.len());
        for &size in &cut.sizes {
            let tensor = allocate(ctx, dtype, cut.shape(&input.shape, size)?)?;
            parts.push(Part { tensor, columns: size * suffix });
        }
        mover.run(ctx, Way::Cut, &input, prefix, &parts)?;
        for (n, part) in parts.into_iter().enumerate() {
            ctx.set_output(n, part.tensor);
        }
        Ok(())
    })
}

/// One of the matrices that stand side by side.
struct Part {
    tensor: DeviceTensor,
    columns: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Join,
    Cut,
}

/// How many parts one launch moves: `MOST_PARTS` of the `.cu` file.
const MOST_PARTS: usize = 16;

/// Moves matrices side by side into one, or out of it.
struct SideBySide(Arc<Function>);

impl SideBySide {
    fn new(init: &KernelInit<'_>, dtype: DType) -> Result<SideBySide> {
        Ok(SideBySide(function(init, &SOURCE, format!("side_by_side<{}>", moved_type_name(dtype)?))?))
    }

    fn run(
        &self,
        ctx: &KernelContext<'_>,
        way: Way,
        joined: &DeviceTensor,
        rows: usize,
        parts: &[Part],
    ) -> Result<()> {
        let there: Vec<&Part> = parts.iter().filter(|part| rows * part.columns > 0).collect();
        let total: usize = there.iter().map(|part| part.columns).sum();
        let pack = PACK / joined.dtype.size().unwrap_or(PACK);
        let in_packs = pack > 1 && there.iter().all(|part| part.columns % pack == 0);
        let unit = if in_packs { pack } else { 1 };
        let mut first = 0;
        for some in there.chunks(MOST_PARTS) {
            let (mut addresses, mut ends) = ([0; MOST_PARTS], [0; MOST_PARTS]);
            let mut width = 0;
            for (i, part) in some.iter().enumerate() {
                let at = if way == Way::Join { read(&part.tensor)? } else { write(&part.tensor)? };
                width += part.columns / unit;
                (addresses[i], ends[i]) = (at.0 as i64, width as i64);
            }
            let arguments = Arguments::new()
                .address(if way == Way::Join { write(joined)? } else { read(joined)? })
                .count(rows * width)
                .count(total / unit)
                .count(first)
                .flag(way == Way::Join)
                .flag(in_packs)
                .structure([some.len() as i64].into_iter().chain(addresses).chain(ends));
            launch(ctx, &self.0, rows * width, arguments)?;
            first += width;
        }
        Ok(())
    }
}
