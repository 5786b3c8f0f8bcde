//! Kernels of reference variables.

use crate::numeric::dispatch::{INDEX, NUMBERS, dispatch};
use crate::numeric::scalar::Arithmetic;
use crate::numeric::threads::{PARALLEL, for_chunks, is_parallel_under_lock};
use crate::plan::variable::temporary;
use device::handle::container;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::value::Value;
use device::variable::{RefVariable, Variable};
use device::{Error, Result};
use graph::{Code, DType, PartialShape, Tensor};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("VariableV2", &[], variable).brief(),
    KernelDef::of("Variable", &[], variable).brief(),
    KernelDef::of("TemporaryVariable", &[], |init| {
        temporary(init, |_, variable, shape| {
            *variable.lock() = Some(Tensor::zeros(variable.dtype(), shape)?);
            Ok(())
        })
    }),
    KernelDef::of("DestroyTemporaryVariable", &[], |_| Kernel::sync(destroy_temporary)),
    KernelDef::of("Assign", &[], |init| {
        let validate = init.attr::<bool>("validate_shape")?;
        Kernel::sync(move |ctx| assign(ctx, validate))
    }),
    KernelDef::of("AssignAdd", &[("T", NUMBERS)], |init| {
        let update = update_fn(init.input_type(1), Operation::Add)?;
        Kernel::sync(move |ctx| assign_with(ctx, update))
    }),
    KernelDef::of("AssignSub", &[("T", NUMBERS)], |init| {
        let update = update_fn(init.input_type(1), Operation::Subtract)?;
        Kernel::sync(move |ctx| assign_with(ctx, update))
    }),
    KernelDef::of("IsVariableInitialized", &[], |_| {
        Kernel::sync(|ctx| {
            let initialized = ctx.ref_input(0)?.is_initialized();
            ctx.set_output(0, Tensor::from(initialized));
            Ok(())
        })
    }),
    KernelDef::of("CountUpTo", &[("T", INDEX)], |init| {
        let limit = init.attr::<i64>("limit")?;
        Kernel::sync(move |ctx| {
            let before = ctx.ref_input(0)?.update(|value| count_up_to(value, limit))?;
            ctx.set_output(0, before);
            Ok(())
        })
    }),
];

/// Returns the container and the shared name, or the node's name if there is no shared name.
pub(super) fn shared_name(init: &KernelInit<'_>) -> Result<(String, String)> {
    let shared = init.attr::<String>("shared_name")?;
    let name = if shared.is_empty() { init.node.name.to_string() } else { shared };
    Ok((container(init)?, name))
}

/// Makes the kernel that outputs a reference to the device's variable of this name, creating it if it does not exist.
fn variable(init: &KernelInit<'_>) -> Result<Kernel> {
    let (container, name) = shared_name(init)?;
    let (dtype, shape) = (init.attr::<DType>("dtype")?, init.attr::<PartialShape>("shape")?);
    // The cached variable, and the number of removals from resource containers when the variable was found: if the
    // number has changed since, the variable may have been removed.
    let found: Mutex<(u64, Weak<Variable>)> = Mutex::default();
    let node_name = init.node.name.clone();
    Kernel::sync(move |ctx| {
        let store = ctx.resources();
        let mut found = found.lock();
        let removals = store.removals();
        let known = if found.0 == removals { found.1.upgrade() } else { None };
        let variable = match known {
            Some(variable) => variable,
            None => {
                let make =
                    || Ok(RefVariable(Arc::new(Variable::new(node_name.clone(), dtype, shape.clone()))));
                let variable = store.lookup_or_create(&container, &name, make)?.0.clone();
                if variable.dtype() != dtype {
                    device::invalid!(
                        "Trying to access variable {name} with wrong dtype. Expected {} got {dtype}",
                        variable.dtype()
                    );
                }
                *found = (removals, Arc::downgrade(&variable));
                variable
            }
        };
        ctx.set_output(0, Value::Ref(variable));
        Ok(())
    })
}

fn destroy_temporary(ctx: &mut KernelContext<'_>) -> Result<()> {
    let variable = ctx.ref_input(0)?;
    let value = variable.lock().take().ok_or_else(|| variable.uninitialized())?;
    ctx.set_output(0, value);
    Ok(())
}

/// Assigns the input tensor's buffer to the variable without a copy; other tensors that share the buffer are safe,
/// because writers copy a shared buffer.
fn assign(ctx: &mut KernelContext<'_>, validate: bool) -> Result<()> {
    let value = ctx.take_input(1)?;
    let variable = ctx.ref_input(0)?.clone();
    if value.dtype() != variable.dtype() {
        device::invalid!("Assign of {} to a variable of {}", value.dtype(), variable.dtype());
    }
    let mut current = variable.lock();
    if validate {
        let fits = match &*current {
            Some(old) => old.shape() == value.shape(),
            None => variable.shape().accepts(value.shape()),
        };
        if !fits {
            let lhs = match &*current {
                Some(old) => old.shape().to_string(),
                None => variable.shape().to_string(),
            };
            device::invalid!(
                "Assign requires shapes of both tensors to match. lhs shape= {lhs} rhs shape= {}",
                value.shape()
            );
        }
    }
    let old = current.replace(value);
    drop(current);
    drop(old);
    ctx.set_output(0, Value::Ref(variable));
    Ok(())
}

fn assign_with(ctx: &mut KernelContext<'_>, update: UpdateFn) -> Result<()> {
    let variable = ctx.ref_input(0)?.clone();
    let by = ctx.input(1)?;
    variable.update(|value| {
        if value.shape() != by.shape() {
            device::invalid!("Parameters and update must be the same size");
        }
        update(value, by)
    })?;
    ctx.set_output(0, Value::Ref(variable));
    Ok(())
}

/// The operation that computes a variable's new value from the old one and an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Add,
    Subtract,
}

/// A function that replaces a tensor by the result of an operation with a tensor of the same shape, element by
/// element.
pub(super) type UpdateFn = fn(&mut Tensor, &Tensor) -> Result<()>;

/// Returns the function that computes an operation on tensors of a dtype.
pub(super) fn update_fn(dtype: DType, operation: Operation) -> Result<UpdateFn> {
    dispatch!(number, dtype, T => Ok(match operation {
        Operation::Add => |value, by| update::<T>(value, by, add_to, add_into),
        Operation::Subtract => |value, by| update::<T>(value, by, subtract_from, subtract_into),
    }))
}

fn add_to<T: Arithmetic>(value: &mut [T], by: &[T]) {
    value.iter_mut().zip(by).for_each(|(value, &by)| *value = value.plus(by));
}

fn subtract_from<T: Arithmetic>(value: &mut [T], by: &[T]) {
    value.iter_mut().zip(by).for_each(|(value, &by)| *value = value.minus(by));
}

fn add_into<T: Arithmetic>(new: &mut [T], old: &[T], by: &[T]) {
    for ((new, &old), &by) in new.iter_mut().zip(old).zip(by) {
        *new = old.plus(by);
    }
}

fn subtract_into<T: Arithmetic>(new: &mut [T], old: &[T], by: &[T]) {
    for ((new, &old), &by) in new.iter_mut().zip(old).zip(by) {
        *new = old.minus(by);
    }
}

/// Replaces `value` by the result of an operation with `by`, a tensor of the same shape. `in_place` overwrites its
/// first operand with the results, and `into` writes the results to new memory.
fn update<T: Arithmetic>(
    value: &mut Tensor,
    by: &Tensor,
    in_place: fn(&mut [T], &[T]),
    into: fn(&mut [T], &[T], &[T]),
) -> Result<()> {
    let by = by.values::<T>()?;
    let chunk = if is_parallel_under_lock(by.len()) { PARALLEL / 4 } else { by.len() };
    if !value.is_unique() {
        // The buffer is shared with a snapshot: the result is written to new memory, which saves the separate pass of
        // a copy.
        let mut new = Tensor::unspecified(T::DTYPE, value.shape().clone())?;
        let old = value.values::<T>()?;
        for_chunks(new.values_mut::<T>()?, chunk, |start, new| {
            let part = start..start + new.len();
            into(new, &old[part.clone()], &by[part]);
        });
        *value = new;
        return Ok(());
    }
    for_chunks(value.values_mut::<T>()?, chunk, |start, value| {
        in_place(value, &by[start..start + value.len()]);
    });
    Ok(())
}

/// Adds one to an integer scalar that is below `limit`, and returns its previous value.
pub(super) fn count_up_to(value: &mut Tensor, limit: i64) -> Result<Tensor> {
    if value.shape().rank() != 0 {
        device::invalid!("input is not a scalar: {}", value.shape());
    }
    let before = value.clone();
    let [count] = value.to_i64s()?[..] else { return Err(Error::internal("a scalar has one element")) };
    if count >= limit {
        return Err(Error::new(Code::OutOfRange, format!("Reached limit of {limit}")));
    }
    match value.dtype() {
        DType::Int32 => {
            let next = i32::try_from(count + 1)
                .map_err(|_| Error::new(Code::OutOfRange, format!("{count} is the last int32")))?;
            value.values_mut::<i32>()?.fill(next);
        }
        _ => value.values_mut::<i64>()?.fill(count + 1),
    }
    Ok(before)
}

#[cfg(test)]
mod tests;
