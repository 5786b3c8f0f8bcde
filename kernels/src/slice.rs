//! Slices, strided slices, and their gradients.

use crate::numeric::copied::{COPIED, CopiedElement, copied};
use crate::numeric::dispatch::INDEX;
use crate::numeric::strided::{Layout, box_kernel, copy, set_box_output};
use crate::plan::scatter::pass_reference;
use crate::plan::slice::{SliceAssignment, layout, plan, slice, slice_assignment, strided_slice};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::variable::VariableInput;
use device::{Result, invalid};
use graph::ops::slice::StridedSliceAttrs;
use graph::{DType, Shape, Tensor};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Slice", &[("T", COPIED), ("Index", INDEX)], |init| box_kernel(init, slice)),
    KernelDef::of(
        "StridedSlice",
        &[("T", COPIED), ("Index", &[DType::Int16, DType::Int32, DType::Int64])],
        |init| {
            let attrs = StridedSliceAttrs::of(init.node)?;
            copied!(init.input_type(0), E => Kernel::sync(move |ctx| {
                let taken = strided_slice(ctx, attrs)?;
                set_box_output::<E>(ctx, taken)
            }))
        },
    ),
    KernelDef::of("StridedSliceGrad", &[("T", COPIED), ("Index", INDEX)], |init| {
        let attrs = StridedSliceAttrs::of(init.node)?;
        copied!(init.output_type(0), E => Kernel::sync(move |ctx| strided_slice_grad::<E>(ctx, attrs)))
    }),
    KernelDef::of("StridedSliceAssign", ASSIGNED, assign),
    KernelDef::of("ResourceStridedSliceAssign", ASSIGNED, assign),
    KernelDef::of("TensorStridedSliceUpdate", ASSIGNED, |init| {
        let attrs = StridedSliceAttrs::of(init.node)?;
        copied!(init.output_type(0), E => Kernel::sync(move |ctx| {
            let mut tensor = ctx.take_input(0)?;
            write::<E>(ctx, attrs, &mut tensor)?;
            ctx.set_output(0, tensor);
            Ok(())
        }))
    }),
];

const ASSIGNED: &[(&str, &[DType])] = &[("T", COPIED), ("Index", INDEX)];

fn strided_slice_grad<E: CopiedElement>(ctx: &mut KernelContext<'_>, attrs: StridedSliceAttrs) -> Result<()> {
    let sizes = ctx.input(0)?;
    if sizes.shape().rank() != 1 {
        invalid!("shape must be 1-D, got shape.shape = {}", sizes.shape());
    }
    let shape = Shape::from_i64(&sizes.to_i64s()?)?;
    let plan = plan(ctx, attrs, 1, &shape)?;
    let dy = ctx.input(4)?;
    if dy.shape().dims() != plan.shape {
        invalid!("shape of dy was {} instead of {}", dy.shape(), Shape::new(&plan.shape)?);
    }
    let (dims, to) = layout(&plan, &shape);
    let out = E::build(dy.dtype(), shape, |out| {
        out.fill(E::zero());
        copy(&dims, E::view(dy)?, &Layout::packed(&dims), out, &to)
    })?;
    ctx.set_output(0, out);
    Ok(())
}

/// Makes the kernel that writes into a slice of a variable.
fn assign(init: &KernelInit<'_>) -> Result<Kernel> {
    let attrs = StridedSliceAttrs::of(init.node)?;
    let variable = VariableInput::new(init, 0);
    let dtype = init.input_type(4);
    copied!(dtype, E => Kernel::sync(move |ctx| {
        let target = variable.get(ctx)?;
        target.update(|tensor| {
            if tensor.dtype() != dtype {
                invalid!("l-value dtype {} does not match r-value dtype {dtype}", tensor.dtype());
            }
            write::<E>(ctx, attrs, tensor)
        })?;
        pass_reference(ctx, &variable, target);
        Ok(())
    }))
}

fn write<E: CopiedElement>(
    ctx: &KernelContext<'_>,
    attrs: StridedSliceAttrs,
    tensor: &mut Tensor,
) -> Result<()> {
    let Some(SliceAssignment { dims, from, to }) = slice_assignment(ctx, attrs, tensor.shape())? else {
        return Ok(());
    };
    let value = ctx.input(4)?;
    E::edit(tensor, |out| copy(&dims, E::view(value)?, &from, out, &to))
}
