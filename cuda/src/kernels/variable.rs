//! Kernels of variables by reference, whose values are in the GPU's memory.

use super::moved::zeros;
use super::support::{NUMBERS, lane};
use super::support::{function, is_unique, moved_type_name, read, type_name, write};
use crate::engine::{Arguments, Function, Piece, Source};
use device::DeviceTensor;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::value::Value;
use device::variable::Variable;
use graph::DType;
use kernels::variable::temporary;
use std::sync::Arc;

static SOURCE: Source = Source { file: "variable.cu", text: include_str!("variable.cu") };

/// What variables on a GPU are of.
pub(super) const STORED: &[DType] = super::support::MOVED;

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

fn destroy_temporary(ctx: &mut KernelContext<'_>) -> Result<()> {
    let variable = ctx.ref_input(0)?;
    let value = variable.lock_device().take().ok_or_else(|| variable.uninitialized())?;
    ctx.set_output(0, value);
    Ok(())
}

fn assign(init: &KernelInit<'_>) -> Result<Kernel> {
    let validate = init.attr::<bool>("validate_shape")?;
    let put = Put::new(init)?;
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
        put.run(ctx, &mut current, value)?;
        drop(current);
        ctx.set_output(0, Value::Ref(variable));
        Ok(())
    })
}

fn assign_with(init: &KernelInit<'_>, named: &str) -> Result<Kernel> {
    let update = Update::new(init, named)?;
    Kernel::sync(move |ctx| {
        let variable = ctx.ref_input(0)?.clone();
        let by = ctx.device_input(1)?;
        changed(ctx, &variable, |value| {
            if value.shape != by.shape {
                device::invalid!("Parameters and update must be the same size");
            }
            update.run(ctx, value, by)
        })?;
        ctx.set_output(0, Value::Ref(variable));
        Ok(())
    })
}

/// A variable's elements changed by those of input 1.
pub(super) struct Update(Arc<Function>);

impl Update {
    pub(super) fn new(init: &KernelInit<'_>, named: &str) -> Result<Update> {
        Update::of(named, init, init.input_type(1))
    }

    pub(super) fn of(named: &str, init: &KernelInit<'_>, dtype: DType) -> Result<Update> {
        Ok(Update(function(init, &SOURCE, format!("update<{named}, {}>", type_name(dtype)?))?))
    }

    pub(super) fn run(&self, ctx: &KernelContext<'_>, value: &DeviceTensor, by: &DeviceTensor) -> Result<()> {
        if value.dtype != by.dtype {
            device::invalid!("a variable of {} is changed by {}", value.dtype, by.dtype);
        }
        change(ctx, &self.0, value, by)
    }
}

/// Enqueues one of the `.cu` file's changes.
fn change(
    ctx: &KernelContext<'_>,
    kernel: &Arc<Function>,
    value: &DeviceTensor,
    by: &DeviceTensor,
) -> Result<()> {
    let (n, bytes) = (value.shape.num_elements(), value.memory.len());
    let piece = Piece::new(n).writes(write(value)?, bytes).reads(read(by)?, bytes);
    lane(ctx)?.launch_piece(kernel, piece, &Arguments::new())
}

/// Bytes from which on a copy of its own is faster than a kernel's.
const LARGE: usize = 1 << 18;

/// Gives a variable the value that input 1 is.
pub(super) struct Put(Arc<Function>);

impl Put {
    pub(super) fn new(init: &KernelInit<'_>) -> Result<Put> {
        Ok(Put(function(init, &SOURCE, format!("put<{}>", moved_type_name(init.input_type(1))?))?))
    }

    /// Gives it the tensor itself, since who else holds it is safe, because writers copy what is shared. What is captured
    /// leaves the variable where it is, and copies the tensor there.
    ///
    /// # Errors
    /// `FailedPrecondition` where the variable cannot stay, or others hold its value; the driver's.
    pub(super) fn run(
        &self,
        ctx: &KernelContext<'_>,
        variable: &mut Option<DeviceTensor>,
        value: DeviceTensor,
    ) -> Result<()> {
        let lane = lane(ctx)?;
        match variable {
            Some(old) if lane.is_captured() && old.dtype == value.dtype && old.shape == value.shape => {
                own_variable(ctx, old)?;
                match value.memory.len() < LARGE {
                    true => change(ctx, &self.0, old, &value),
                    false => lane.copy(old, &value),
                }
            }
            variable => {
                lane.check_moves()?;
                *variable = Some(value);
                Ok(())
            }
        }
    }
}

/// Changes a variable's value, exclusively: in place, or, if somebody holds a snapshot, in a copy.
///
/// # Errors
/// `FailedPrecondition` before the first assignment, and those of `change`.
pub(super) fn changed<R>(
    ctx: &KernelContext<'_>,
    variable: &Variable,
    change: impl FnOnce(&DeviceTensor) -> Result<R>,
) -> Result<R> {
    let mut current = variable.lock_device();
    let value = current.as_mut().ok_or_else(|| variable.uninitialized())?;
    own_variable(ctx, value)?;
    change(value)
}

/// Makes a variable's memory its own.
///
/// # Errors
/// Those of [`Lane::check_changes`](crate::engine::Lane::check_changes), and of memory for a copy.
pub(super) fn own_variable(ctx: &KernelContext<'_>, value: &mut DeviceTensor) -> Result<()> {
    let lane = lane(ctx)?;
    match lane.is_captured() {
        true => lane.check_changes(value),
        false => own(ctx, value),
    }
}

/// Makes a tensor's memory its own.
pub(super) fn own(ctx: &KernelContext<'_>, value: &mut DeviceTensor) -> Result<()> {
    if !is_unique(value) {
        let copy = super::support::allocate(ctx, value.dtype, value.shape.clone())?;
        lane(ctx)?.copy(&copy, value)?;
        *value = copy;
    }
    Ok(())
}
