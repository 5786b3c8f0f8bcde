//! Slices, assignments to slices, and the gradients of slices.

use super::copy::{Mover, make_box_copy, zeros};
use super::support::COPIED;
use super::variable::{make_unique, update_value};
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::variable::VariableInput;
use graph::Shape;
use graph::ops::slice::StridedSliceAttrs;
use kernels::numeric::strided::Layout;
use kernels::plan::scatter::pass_reference;
use kernels::plan::slice::{SliceAssignment, layout, plan, slice, slice_assignment, strided_slice};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["begin", "size"],
        ..KernelDef::enqueuing("Slice", &[("T", COPIED)], |init| make_box_copy(init, slice))
    },
    KernelDef {
        host_memory: &["begin", "end", "strides"],
        ..KernelDef::enqueuing("StridedSlice", &[("T", COPIED)], |init| {
            let attrs = StridedSliceAttrs::of(init.node)?;
            make_box_copy(init, move |ctx| strided_slice(ctx, attrs))
        })
    },
    KernelDef {
        host_memory: &["shape", "begin", "end", "strides"],
        ..KernelDef::enqueuing("StridedSliceGrad", &[("T", COPIED)], gradient)
    },
    KernelDef { host_memory: BOUNDS, ..KernelDef::updating("StridedSliceAssign", &[("T", COPIED)], assign) },
    KernelDef {
        host_memory: BOUNDS,
        ..KernelDef::updating("ResourceStridedSliceAssign", &[("T", COPIED)], assign)
    },
    KernelDef {
        host_memory: BOUNDS,
        ..KernelDef::enqueuing("TensorStridedSliceUpdate", &[("T", COPIED)], update)
    },
];

const BOUNDS: &[&str] = &["begin", "end", "strides"];

/// Makes the kernel of an assignment to a slice of a variable.
fn assign(init: &KernelInit<'_>) -> Result<Kernel> {
    let attrs = StridedSliceAttrs::of(init.node)?;
    let (variable, dtype) = (VariableInput::new(init, 0), init.input_type(4));
    let mover = Mover::new(init, dtype)?;
    Kernel::sync(move |ctx| {
        let target = variable.get(ctx)?;
        update_value(ctx, &target, |tensor| {
            if tensor.dtype != dtype {
                device::invalid!("l-value dtype {} does not match r-value dtype {dtype}", tensor.dtype);
            }
            match slice_assignment(ctx, attrs, &tensor.shape)? {
                Some(SliceAssignment { dims, from, to }) => {
                    mover.copy(ctx, &dims, (ctx.device_input(4)?, &from), (tensor, &to))
                }
                None => Ok(()),
            }
        })?;
        pass_reference(ctx, &variable, target);
        Ok(())
    })
}

/// Makes the kernel of an update of a slice of a tensor.
fn update(init: &KernelInit<'_>) -> Result<Kernel> {
    let attrs = StridedSliceAttrs::of(init.node)?;
    let mover = Mover::new(init, init.input_type(4))?;
    Kernel::sync(move |ctx| {
        let mut tensor = ctx.take_device_input(0)?;
        if let Some(SliceAssignment { dims, from, to }) = slice_assignment(ctx, attrs, &tensor.shape)? {
            make_unique(ctx, &mut tensor)?;
            mover.copy(ctx, &dims, (ctx.device_input(4)?, &from), (&tensor, &to))?;
        }
        ctx.set_output(0, tensor);
        Ok(())
    })
}

/// Makes the kernel of a slice's gradient.
fn gradient(init: &KernelInit<'_>) -> Result<Kernel> {
    let attrs = StridedSliceAttrs::of(init.node)?;
    let mover = Mover::new(init, init.output_type(0))?;
    Kernel::sync(move |ctx| {
        let sizes = ctx.input(0)?;
        if sizes.shape().rank() != 1 {
            device::invalid!("shape must be 1-D, got shape.shape = {}", sizes.shape());
        }
        let shape = Shape::from_i64(&sizes.to_i64s()?)?;
        let plan = plan(ctx, attrs, 1, &shape)?;
        let dy = ctx.device_input(4)?;
        if dy.shape.dims() != plan.shape {
            device::invalid!("shape of dy was {} instead of {}", dy.shape, Shape::new(&plan.shape)?);
        }
        let (dims, to) = layout(&plan, &shape);
        let out = zeros(ctx, dy.dtype, shape)?;
        mover.copy(ctx, &dims, (dy, &Layout::packed(&dims)), (&out, &to))?;
        ctx.set_output(0, out);
        Ok(())
    })
}
