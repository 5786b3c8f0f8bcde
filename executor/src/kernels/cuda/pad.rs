//! Padding with zeros, with a value, and with mirror images.

use super::moved::{Filler, Mover, zeros};
use super::support::{
    Axes, MOVED, NUMBERS, allocate, function, launch, moved_type_name, read, type_name, write,
};
use crate::cuda::{Arguments, Source};
use crate::error::Result;
use crate::kernel::{Kernel, KernelDef, KernelInit};
use crate::kernels::cpu::pad::{
    MOST_AXES, MOST_MIRRORED, check_mirrored, mirror_offset, padded, paddings, unpadded,
};
use crate::kernels::cpu::strided::Layout;

static SOURCE: Source = Source { file: "pad.cu", text: include_str!("pad.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef { host_memory: &["paddings"], ..KernelDef::enqueuing("Pad", &[("T", MOVED)], pad) },
    KernelDef { host_memory: &["paddings"], ..KernelDef::enqueuing("PadV2", &[("T", MOVED)], pad) },
    KernelDef {
        host_memory: &["paddings"],
        ..KernelDef::enqueuing("MirrorPad", &[("T", MOVED)], |init| mirror(init, false))
    },
    KernelDef {
        host_memory: &["paddings"],
        ..KernelDef::enqueuing("MirrorPadGrad", &[("T", NUMBERS)], |init| mirror(init, true))
    },
];

/// Mirror images around the input; of a gradient, what comes back to what they show.
fn mirror(init: &KernelInit<'_>, is_back: bool) -> Result<Kernel> {
    let (dtype, offset) = (init.input_type(0), mirror_offset(init)?);
    let name = match is_back {
        false => format!("mirror<{}>", moved_type_name(dtype)?),
        true => format!("mirror_gradient<{}>", type_name(dtype)?),
    };
    let mirror = function(init, &SOURCE, name)?;
    Kernel::sync(move |ctx| {
        let paddings = paddings(ctx, MOST_MIRRORED)?;
        let x = ctx.device_input(0)?;
        let shape = if is_back { unpadded(&x.shape, &paddings)? } else { padded(&x.shape, &paddings)? };
        let inner = if is_back { &shape } else { &x.shape };
        check_mirrored(inner, &paddings, offset)?;
        let out = if shape == x.shape {
            x.clone()
        } else {
            let out = allocate(ctx, dtype, shape.clone())?;
            let n = shape.num_elements();
            let arguments = Arguments::new().address(read(x)?).address(write(&out)?).count(n);
            // `Mirror` of the `.cu` file.
            let both = paddings.iter().map(|&(before, after)| [before as isize, after as isize]);
            let axes = Axes::apart(inner.iter().copied().zip(both))?;
            let words = axes.words().chain([offset as i64]);
            launch(ctx, &mirror, n, arguments.structure(words))?;
            out
        };
        ctx.set_output(0, out);
        Ok(())
    })
}

fn pad(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.input_type(0);
    let (mover, filler) = (Mover::new(init, dtype)?, Filler::new(init, dtype)?);
    Kernel::sync(move |ctx| {
        let paddings = paddings(ctx, MOST_AXES)?;
        let input = ctx.device_input(0)?;
        let shape = padded(&input.shape, &paddings)?;
        if ctx.num_inputs() > 2 && ctx.shape(2)?.num_elements() != 1 {
            crate::invalid!("constant_values must be a scalar. Found: {}", ctx.shape(2)?);
        }
        let out = if shape == input.shape {
            input.clone()
        } else {
            let mut to = Layout::packed(&shape);
            to.offset = paddings.iter().zip(&to.strides).map(|(&(before, _), s)| before as isize * s).sum();
            let out = if ctx.num_inputs() > 2 {
                let out = allocate(ctx, dtype, shape)?;
                filler.fill(ctx, ctx.device_input(2)?, &out)?;
                out
            } else {
                zeros(ctx, dtype, shape)?
            };
            mover.copy(ctx, &input.shape, (input, &Layout::packed(&input.shape)), (&out, &to))?;
            out
        };
        ctx.set_output(0, out);
        Ok(())
    })
}
