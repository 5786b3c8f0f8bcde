//! Padding with zeros, and with a value.

use super::moved::{Filler, Mover, zeros};
use super::support::{MOVED, allocate};
use crate::error::Result;
use crate::kernel::{Kernel, KernelDef, KernelInit};
use crate::kernels::cpu::pad::{MOST_AXES, padded, paddings};
use crate::kernels::cpu::strided::Layout;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef { host_memory: &["paddings"], ..KernelDef::enqueuing("Pad", &[("T", MOVED)], pad) },
    KernelDef { host_memory: &["paddings"], ..KernelDef::enqueuing("PadV2", &[("T", MOVED)], pad) },
];

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
