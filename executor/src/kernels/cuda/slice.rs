//! Slices, and the gradients of slices.

use super::moved::{Mover, taking, zeros};
use super::support::MOVED;
use crate::error::Result;
use crate::kernel::{Kernel, KernelDef, KernelInit};
use crate::kernels::cpu::slice::{layout, plan, slice, strided_slice};
use crate::kernels::cpu::strided::Layout;
use graph::Shape;
use graph::ops::slice::StridedSliceAttrs;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["begin", "size"],
        ..KernelDef::enqueuing("Slice", &[("T", MOVED)], |init| taking(init, slice))
    },
    KernelDef {
        host_memory: &["begin", "end", "strides"],
        ..KernelDef::enqueuing("StridedSlice", &[("T", MOVED)], |init| {
            let attrs = StridedSliceAttrs::of(init.node)?;
            taking(init, move |ctx| strided_slice(ctx, attrs))
        })
    },
    KernelDef {
        host_memory: &["shape", "begin", "end", "strides"],
        ..KernelDef::enqueuing("StridedSliceGrad", &[("T", MOVED)], gradient)
    },
];

fn gradient(init: &KernelInit<'_>) -> Result<Kernel> {
    let attrs = StridedSliceAttrs::of(init.node)?;
    let mover = Mover::new(init, init.output_type(0))?;
    Kernel::sync(move |ctx| {
        let sizes = ctx.input(0)?;
        if sizes.shape().rank() != 1 {
            crate::invalid!("shape must be 1-D, got shape.shape = {}", sizes.shape());
        }
        let shape = Shape::from_i64(&sizes.to_i64s()?)?;
        let plan = plan(ctx, attrs, 1, &shape)?;
        let dy = ctx.device_input(4)?;
        if dy.shape.dims() != plan.shape {
            crate::invalid!("shape of dy was {} instead of {}", dy.shape, Shape::new(&plan.shape)?);
        }
        let (dims, to) = layout(&plan, &shape);
        let out = zeros(ctx, dy.dtype, shape)?;
        mover.copy(ctx, &dims, (dy, &Layout::packed(&dims)), (&out, &to))?;
        ctx.set_output(0, out);
        Ok(())
    })
}
