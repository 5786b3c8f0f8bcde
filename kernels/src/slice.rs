//! Slices, strided slices, and their gradients.

use super::pad::{EmbedFn, embed_fn};
use crate::numeric::copied::{COPIED, CopiedElement, copied};
use crate::numeric::dispatch::INDEX;
use crate::numeric::strided::{InputBox, box_kernel, copy, pack, set_box_output};
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
            let set_output = box_output_fn(init.input_type(0))?;
            Kernel::sync(move |ctx| {
                let taken = strided_slice(ctx, attrs)?;
                set_output(ctx, taken)
            })
        },
    ),
    KernelDef::of("StridedSliceGrad", &[("T", COPIED), ("Index", INDEX)], |init| {
        let attrs = StridedSliceAttrs::of(init.node)?;
        let embed = embed_fn(init.output_type(0))?;
        Kernel::sync(move |ctx| strided_slice_grad(ctx, attrs, embed))
    }),
    KernelDef::of("StridedSliceAssign", ASSIGNED, assign),
    KernelDef::of("ResourceStridedSliceAssign", ASSIGNED, assign),
    KernelDef::of("TensorStridedSliceUpdate", ASSIGNED, |init| {
        let attrs = StridedSliceAttrs::of(init.node)?;
        let write = write_fn(init.output_type(0))?;
        Kernel::sync(move |ctx| {
            let mut tensor = ctx.take_input(0)?;
            assign_slice(ctx, attrs, &mut tensor, write)?;
            ctx.set_output(0, tensor);
            Ok(())
        })
    }),
];

const ASSIGNED: &[(&str, &[DType])] = &[("T", COPIED), ("Index", INDEX)];

/// A function that sets output 0 to a box (one index range per axis) of input 0; see [`set_box_output`].
type SetBoxOutputFn = fn(&mut KernelContext<'_>, InputBox) -> Result<()>;

/// Returns the function that sets output 0 to a box of input 0, whose elements have the given dtype.
pub(super) fn box_output_fn(dtype: DType) -> Result<SetBoxOutputFn> {
    copied!(dtype, E => Ok(set_box_output::<E> as SetBoxOutputFn))
}

/// A function that returns a box (one index range per axis) of a tensor's elements as a tensor.
pub(super) type TakeFn = fn(&Tensor, InputBox) -> Result<Tensor>;

/// Returns the [`TakeFn`] of a dtype.
pub(super) fn take_fn(dtype: DType) -> Result<TakeFn> {
    copied!(dtype, E => Ok(taken::<E> as TakeFn))
}

fn taken<E: CopiedElement>(input: &Tensor, part: InputBox) -> Result<Tensor> {
    E::build(input.dtype(), part.shape, |out| pack(&part.dims, E::view(input)?, &part.from, out))
}

fn strided_slice_grad(ctx: &mut KernelContext<'_>, attrs: StridedSliceAttrs, embed: EmbedFn) -> Result<()> {
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
    let out = embed(dy, &dims, None, shape, &to)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Makes the kernel that writes into a slice of a variable.
fn assign(init: &KernelInit<'_>) -> Result<Kernel> {
    let attrs = StridedSliceAttrs::of(init.node)?;
    let variable = VariableInput::new(init, 0);
    let dtype = init.input_type(4);
    let write = write_fn(dtype)?;
    Kernel::sync(move |ctx| {
        let target = variable.get(ctx)?;
        target.update(|tensor| {
            if tensor.dtype() != dtype {
                invalid!("l-value dtype {} does not match r-value dtype {dtype}", tensor.dtype());
            }
            assign_slice(ctx, attrs, tensor, write)
        })?;
        pass_reference(ctx, &variable, target);
        Ok(())
    })
}

/// A function that writes a tensor of values into a slice of another tensor.
type WriteFn = fn(&mut Tensor, &Tensor, &SliceAssignment) -> Result<()>;

fn write_fn(dtype: DType) -> Result<WriteFn> {
    copied!(dtype, E => Ok(write::<E> as WriteFn))
}

fn assign_slice(
    ctx: &KernelContext<'_>,
    attrs: StridedSliceAttrs,
    tensor: &mut Tensor,
    write: WriteFn,
) -> Result<()> {
    match slice_assignment(ctx, attrs, tensor.shape())? {
        Some(assignment) => write(tensor, ctx.input(4)?, &assignment),
        None => Ok(()),
    }
}

fn write<E: CopiedElement>(tensor: &mut Tensor, value: &Tensor, assignment: &SliceAssignment) -> Result<()> {
    let SliceAssignment { dims, from, to } = assignment;
    E::edit(tensor, |out| copy(dims, E::view(value)?, from, out, to))
}
