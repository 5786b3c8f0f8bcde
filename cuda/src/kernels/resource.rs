//! Kernels of resource variables, whose values are in the GPU's memory and whose handles are on the host.

use super::gather::Gather;
use super::host::same_as_cpu;
use super::support::NUMBERS;
use super::variable::{Assignment, InPlaceUpdate, STORED, update_value};
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::variable::VariableInput;
use graph::DType;
use kernels::numeric::dispatch::INDEX;
use kernels::plan::resource::{readable, target};

pub(super) const KERNELS: &[KernelDef] = &[
    same_as_cpu("VarHandleOp", &[("dtype", STORED)], &[]),
    same_as_cpu("VarIsInitializedOp", &[], &["is_initialized"]),
    same_as_cpu("DestroyResourceOp", &[], &[]),
    same_as_cpu("DisableCopyOnRead", &[], &[]),
    KernelDef::enqueuing("ReadVariableOp", &[("dtype", STORED)], read),
    KernelDef {
        host_memory: &["output"],
        ..KernelDef::enqueuing("VariableShape", &[("out_type", INDEX)], shape)
    },
    KernelDef::assigning("AssignVariableOp", &[("dtype", STORED)], assign),
    KernelDef::updating("AssignAddVariableOp", &[("dtype", NUMBERS)], |init| assign_with(init, "Add")),
    KernelDef::updating("AssignSubVariableOp", &[("dtype", NUMBERS)], |init| assign_with(init, "Sub")),
    KernelDef::enqueuing("ResourceGather", &[("dtype", STORED), ("Tindices", INDEX)], gather),
];

/// Makes the kernel of `ReadVariableOp`.
fn read(init: &KernelInit<'_>) -> Result<Kernel> {
    let variable = VariableInput::new(init, 0);
    let dtype = init.attr::<DType>("dtype")?;
    Kernel::sync(move |ctx| {
        let variable = readable(&variable, ctx, dtype)?;
        let value = variable.lock_device().clone().ok_or_else(|| variable.uninitialized())?;
        ctx.set_output(0, value);
        Ok(())
    })
}

/// Makes the kernel of `VariableShape`.
fn shape(init: &KernelInit<'_>) -> Result<Kernel> {
    let variable = VariableInput::new(init, 0);
    let dtype = init.output_type(0);
    Kernel::sync(move |ctx| {
        let variable = variable.get(ctx)?;
        let shape = variable.lock_device().as_ref().map(|value| value.shape.clone());
        let shape = shape.ok_or_else(|| variable.uninitialized())?;
        let sizes: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        ctx.set_output(0, kernels::plan::shape::integers(dtype, &sizes)?);
        Ok(())
    })
}

/// Makes the kernel of `AssignVariableOp`; the first assignment initialises the variable.
fn assign(init: &KernelInit<'_>) -> Result<Kernel> {
    let input = VariableInput::new(init, 0);
    let validate = init.attr::<bool>("validate_shape")?;
    let assignment = Assignment::new(init)?;
    Kernel::sync(move |ctx| {
        let value = ctx.take_device_input(1)?;
        let variable = target(&input, ctx, value.dtype)?;
        let mut current = variable.lock_device();
        if validate
            && let Some(old) = &*current
            && old.shape != value.shape
        {
            device::invalid!(
                "Trying to assign to variable with tensor with wrong shape. Expected {} got {}",
                old.shape,
                value.shape
            );
        }
        assignment.run(ctx, &mut current, value)
    })
}

/// Makes the kernel of `AssignAddVariableOp` or `AssignSubVariableOp`.
fn assign_with(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let variable = VariableInput::new(init, 0);
    let update = InPlaceUpdate::new(init, named)?;
    Kernel::sync(move |ctx| {
        let by = ctx.device_input(1)?;
        update_value(ctx, &*variable.get(ctx)?, |value| {
            if value.shape != by.shape {
                device::invalid!(
                    "Cannot update variable with shape {} using a Tensor with shape {}, shapes must be equal.",
                    value.shape,
                    by.shape
                );
            }
            update.run(ctx, value, by)
        })
    })
}

/// Makes the kernel of `ResourceGather`.
fn gather(init: &KernelInit<'_>) -> Result<Kernel> {
    let variable = VariableInput::new(init, 0);
    let batch_dims = init.attr::<i64>("batch_dims")?;
    let dtype = init.attr::<DType>("dtype")?;
    let gather = Gather::new(init, dtype)?;
    Kernel::sync(move |ctx| {
        let variable = variable.get(ctx)?;
        let params = variable.lock_device().clone().ok_or_else(|| variable.uninitialized())?;
        if params.dtype != dtype {
            device::invalid!("Trying to gather {dtype} from a variable of {}", params.dtype);
        }
        // Batch axes come first, so the gathered axis is the one after them.
        let rank = ctx.shape(1)?.rank() as i64;
        let batch = if batch_dims < 0 { batch_dims + rank } else { batch_dims };
        let out = gather.run(ctx, &params, batch, batch_dims)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
