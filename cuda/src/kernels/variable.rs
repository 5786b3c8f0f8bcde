//! Kernels of reference variables, whose values are in the GPU's memory.

use super::copy::zeros;
use super::support::{NUMBERS, copied_type_name, function, is_unique, kernel_stream, read, type_name, write};
use crate::engine::{Arguments, Function, Piece, Source};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::value::Value;
use device::variable::Variable;
use device::{DeviceTensor, Result};
use graph::DType;
use kernels::plan::variable::temporary;
use std::sync::Arc;

static SOURCE: Source = Source { file: "variable.cu", text: include_str!("variable.cu") };

/// Dtypes of variables on a GPU.
pub(super) const STORED: &[DType] = super::support::COPIED;

pub(super) const KERNELS: &[KernelDef] = &[
    super::host::same_as_cpu("VariableV2", &[("dtype", STORED)], &[]),
    super::host::same_as_cpu("Variable", &[("dtype", STORED)], &[]),
    super::host::same_as_cpu("IsVariableInitialized", &[("dtype", STORED)], &["is_initialized"]),
    KernelDef::of("TemporaryVariable", &[("dtype", STORED)], |init| {
        temporary(init, |ctx, variable, shape| {
            *variable.lock_device() = Some(zeros(ctx, variable.dtype(), shape)?);
            Ok(())
        })
    }),
    KernelDef::of("DestroyTemporaryVariable", &[("T", STORED)], |_| Kernel::sync(destroy_temporary)),
    KernelDef::assigning("Assign", &[("T", STORED)], assign),
    KernelDef::updating("AssignAdd", &[("T", NUMBERS)], |init| assign_with(init, "Add")),
    KernelDef::updating("AssignSub", &[("T", NUMBERS)], |init| assign_with(init, "Sub")),
];

/// The kernel of `DestroyTemporaryVariable`.
fn destroy_temporary(ctx: &mut KernelContext<'_>) -> Result<()> {
    let variable = ctx.ref_input(0)?;
    let value = variable.lock_device().take().ok_or_else(|| variable.uninitialized())?;
    ctx.set_output(0, value);
    Ok(())
}

/// Makes the kernel of `Assign`.
fn assign(init: &KernelInit<'_>) -> Result<Kernel> {
    let validate = init.attr::<bool>("validate_shape")?;
    let assignment = Assignment::new(init)?;
    Kernel::sync(move |ctx| {
        let value = ctx.take_device_input(1)?;
        let variable = ctx.ref_input(0)?.clone();
        if value.dtype != variable.dtype() {
            device::invalid!("Assign of {} to a variable of {}", value.dtype, variable.dtype());
        }
        let mut current = variable.lock_device();
        if validate {
            let (fits, lhs) = match &*current {
                Some(old) => (old.shape == value.shape, old.shape.to_string()),
                None => (variable.shape().accepts(&value.shape), variable.shape().to_string()),
            };
            if !fits {
                device::invalid!(
                    "Assign requires shapes of both tensors to match. lhs shape= {lhs} rhs shape= {}",
                    value.shape
                );
            }
        }
        assignment.run(ctx, &mut current, value)?;
        drop(current);
        ctx.set_output(0, Value::Ref(variable));
        Ok(())
    })
}

/// Makes the kernel of `AssignAdd` or `AssignSub`.
fn assign_with(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let update = InPlaceUpdate::new(init, named)?;
    Kernel::sync(move |ctx| {
        let variable = ctx.ref_input(0)?.clone();
        let by = ctx.device_input(1)?;
        update_value(ctx, &variable, |value| {
            if value.shape != by.shape {
                device::invalid!("Parameters and update must be the same size");
            }
            update.run(ctx, value, by)
        })?;
        ctx.set_output(0, Value::Ref(variable));
        Ok(())
    })
}

/// The kernel that updates each element of a variable by the corresponding element of another tensor.
pub(super) struct InPlaceUpdate(Arc<Function>);

impl InPlaceUpdate {
    /// Loads the kernel for the dtype of input 1.
    pub(super) fn new(init: &KernelInit<'_>, named: &str) -> Result<InPlaceUpdate> {
        InPlaceUpdate::of(named, init, init.input_type(1))
    }

    /// Loads the kernel of the update `named` for a dtype.
    pub(super) fn of(named: &str, init: &KernelInit<'_>, dtype: DType) -> Result<InPlaceUpdate> {
        Ok(InPlaceUpdate(function(init, &SOURCE, format!("update<{named}, {}>", type_name(dtype)?))?))
    }

    /// Enqueues the update of `value` by `by`.
    pub(super) fn run(&self, ctx: &KernelContext<'_>, value: &DeviceTensor, by: &DeviceTensor) -> Result<()> {
        if value.dtype != by.dtype {
            device::invalid!("a variable of {} is changed by {}", value.dtype, by.dtype);
        }
        change(ctx, &self.0, value, by)
    }
}

/// Enqueues a kernel of the `.cu` file that changes the elements of `value` by the elements of `by`.
fn change(
    ctx: &KernelContext<'_>,
    kernel: &Arc<Function>,
    value: &DeviceTensor,
    by: &DeviceTensor,
) -> Result<()> {
    let (n, bytes) = (value.shape.num_elements(), value.memory.len());
    let piece = Piece::new(n).writes(write(value)?, bytes).reads(read(by)?, bytes);
    kernel_stream(ctx)?.launch_piece(kernel, piece, &Arguments::new())
}

/// Size in bytes from which the driver's copy is faster than a batched kernel that copies.
const LARGE: usize = 1 << 18;

/// The kernel that assigns input 1 to a variable.
pub(super) struct Assignment(Arc<Function>);

impl Assignment {
    /// Loads the kernel for the dtype of input 1.
    pub(super) fn new(init: &KernelInit<'_>) -> Result<Assignment> {
        Ok(Assignment(function(init, &SOURCE, format!("put<{}>", copied_type_name(init.input_type(1))?))?))
    }

    /// Assigns a value. Outside a capture the variable shares the tensor's memory, which is safe because shared
    /// memory is copied before a write. In a capture the value is copied to the memory that the variable
    /// already has.
    ///
    /// # Errors
    /// `FailedPrecondition` in a capture if the variable cannot keep its memory, or the memory is shared; the errors of
    /// the driver.
    pub(super) fn run(
        &self,
        ctx: &KernelContext<'_>,
        variable: &mut Option<DeviceTensor>,
        value: DeviceTensor,
    ) -> Result<()> {
        let stream = kernel_stream(ctx)?;
        match variable {
            Some(old) if stream.is_captured() && old.dtype == value.dtype && old.shape == value.shape => {
                make_variable_unique(ctx, old)?;
                match value.memory.len() < LARGE {
                    true => change(ctx, &self.0, old, &value),
                    false => stream.copy(old, &value),
                }
            }
            variable => {
                stream.check_moves()?;
                *variable = Some(value);
                Ok(())
            }
        }
    }
}

/// Changes a variable's value under its lock: in place, or in a copy if a snapshot shares the memory.
///
/// # Errors
/// `FailedPrecondition` if the variable is not initialised, and the errors of `change`.
pub(super) fn update_value<R>(
    ctx: &KernelContext<'_>,
    variable: &Variable,
    change: impl FnOnce(&DeviceTensor) -> Result<R>,
) -> Result<R> {
    let mut current = variable.lock_device();
    let value = current.as_mut().ok_or_else(|| variable.uninitialized())?;
    make_variable_unique(ctx, value)?;
    change(value)
}

/// Ensures that a variable's memory is not shared.
///
/// # Errors
/// The errors of [`KernelStream::check_changes`](crate::engine::KernelStream::check_changes), and of allocating a copy.
pub(super) fn make_variable_unique(ctx: &KernelContext<'_>, value: &mut DeviceTensor) -> Result<()> {
    let stream = kernel_stream(ctx)?;
    match stream.is_captured() {
        true => stream.check_changes(value),
        false => make_unique(ctx, value),
    }
}

/// Replaces a tensor by a copy if other tensors share its memory.
pub(super) fn make_unique(ctx: &KernelContext<'_>, value: &mut DeviceTensor) -> Result<()> {
    if !is_unique(value) {
        let copy = super::support::allocate(ctx, value.dtype, value.shape.clone())?;
        kernel_stream(ctx)?.copy(&copy, value)?;
        *value = copy;
    }
    Ok(())
}
