//! Variables: tensors that steps share, read by snapshot and written in place.

use crate::device::DeviceTensor;
use crate::error::{Error, Result};
use crate::handle::{HandleInput, one_handle};
use crate::kernel::{KernelContext, KernelInit};
use crate::resource::{Resource, ResourceStore};
use crate::value::Value;
use graph::{Code, DType, PartialShape, ResourceHandle, Tensor};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// A mutable tensor, with no value until the first assignment.
///
/// A reader takes a snapshot that shares storage; a writer that finds storage shared copies it first, so that
/// what a reader holds never changes under it.
#[derive(Debug)]
pub struct Variable {
    name: Arc<str>,
    dtype: DType,
    shape: PartialShape,
    value: Mutex<Option<Tensor>>,
    /// The value of a variable whose device has memory of its own; then `value` stays empty.
    device_value: Mutex<Option<DeviceTensor>>,
}

impl Variable {
    pub fn new(name: impl Into<Arc<str>>, dtype: DType, shape: PartialShape) -> Variable {
        Variable { name: name.into(), dtype, shape, value: Mutex::new(None), device_value: Mutex::new(None) }
    }

    /// The name of the node that made it, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The declared shape; values may be narrower.
    pub fn shape(&self) -> &PartialShape {
        &self.shape
    }

    /// A snapshot of the value; `None` before the first assignment.
    pub fn read(&self) -> Option<Tensor> {
        self.value.lock().clone()
    }

    /// A snapshot of the value.
    ///
    /// # Errors
    /// `FailedPrecondition` before the first assignment. Clients look for this text.
    pub fn value(&self) -> Result<Tensor> {
        self.read().ok_or_else(|| self.uninitialized())
    }

    /// A snapshot of the value, in whichever memory it is; `None` before the first assignment.
    pub fn snapshot(&self) -> Option<Value> {
        if let Some(tensor) = self.read() {
            return Some(tensor.into());
        }
        self.lock_device().clone().map(Value::from)
    }

    /// Changes the value in place, exclusively.
    ///
    /// # Errors
    /// As [`Variable::value`], and those of `change`.
    pub fn update<R>(&self, change: impl FnOnce(&mut Tensor) -> Result<R>) -> Result<R> {
        match self.value.lock().as_mut() {
            Some(value) => change(value),
            None => Err(self.uninitialized()),
        }
    }

    /// The error of a read before the first assignment.
    pub fn uninitialized(&self) -> Error {
        Error::new(Code::FailedPrecondition, format!("Attempting to use uninitialized value {}", self.name))
    }

    /// The value for writing, exclusively: keep it short, readers wait.
    pub fn lock(&self) -> MutexGuard<'_, Option<Tensor>> {
        self.value.lock()
    }

    /// As [`Variable::lock`], of a variable whose device has memory of its own.
    pub fn lock_device(&self) -> MutexGuard<'_, Option<DeviceTensor>> {
        self.device_value.lock()
    }

    pub fn is_initialized(&self) -> bool {
        self.value.lock().is_some() || self.device_value.lock().is_some()
    }

    /// As [`Variable::is_initialized`], but it waits for nobody: what is being written may have no value yet.
    pub fn may_be_initialized(&self) -> bool {
        self.value.try_lock().is_none_or(|value| value.is_some())
            || self.device_value.try_lock().is_none_or(|value| value.is_some())
    }
}

/// The variable behind a resource handle (`VarHandleOp`).
impl Resource for Variable {
    const KIND: &'static str = "Var";
}

/// The variable behind a reference (`VariableV2`): another kind, so that the two never share a name.
#[derive(Debug)]
pub struct RefVariable(pub Arc<Variable>);

impl Resource for RefVariable {
    const KIND: &'static str = "LegacyVar";
}

/// An input of a kernel that is a variable: by reference, or behind a handle.
#[derive(Debug)]
pub struct VariableInput {
    input: usize,
    /// `None` if the input is a reference.
    found: Option<HandleInput<Variable>>,
}

impl VariableInput {
    pub fn new(init: &KernelInit<'_>, input: usize) -> VariableInput {
        let is_ref = init.inputs.get(input).is_some_and(|port| port.is_ref);
        VariableInput { input, found: if is_ref { None } else { Some(HandleInput::default()) } }
    }

    pub fn is_ref(&self) -> bool {
        self.found.is_none()
    }

    /// The variable.
    ///
    /// # Errors
    /// `NotFound` if there is none behind the handle.
    pub fn get(&self, ctx: &KernelContext<'_>) -> Result<Arc<Variable>> {
        self.get_or(ctx, |store, handle| store.lookup(&handle.container, &handle.name))
    }

    /// The variable, or what `otherwise` makes of a handle that leads to none.
    pub fn get_or(
        &self,
        ctx: &KernelContext<'_>,
        otherwise: impl FnOnce(&ResourceStore, &ResourceHandle) -> Result<Arc<Variable>>,
    ) -> Result<Arc<Variable>> {
        match &self.found {
            None => Ok(ctx.ref_input(self.input)?.clone()),
            Some(found) => found.get_or(ctx.device(), self.handle(ctx)?, otherwise),
        }
    }

    /// The handle in the input.
    pub fn handle<'a>(&self, ctx: &'a KernelContext<'_>) -> Result<&'a ResourceHandle> {
        one_handle(ctx.input(self.input)?)
    }
}

/// Locks several variables in one global order, so that two kernels that need the same ones cannot wait for
/// each other. Each variable may appear once.
pub fn lock_all<'a, const N: usize>(
    variables: [&'a Variable; N],
) -> Result<[MutexGuard<'a, Option<Tensor>>; N]> {
    lock_each(variables, Variable::lock)
}

/// As [`lock_all`], of variables whose device has memory of its own.
pub fn lock_all_on_device<'a, const N: usize>(
    variables: [&'a Variable; N],
) -> Result<[MutexGuard<'a, Option<DeviceTensor>>; N]> {
    lock_each(variables, Variable::lock_device)
}

fn lock_each<'a, T, const N: usize>(
    variables: [&'a Variable; N],
    lock: impl Fn(&'a Variable) -> MutexGuard<'a, Option<T>>,
) -> Result<[MutexGuard<'a, Option<T>>; N]> {
    let mut order: [usize; N] = std::array::from_fn(|i| i);
    order.sort_by_key(|&i| std::ptr::from_ref(variables[i]) as usize);
    for pair in order.windows(2) {
        if std::ptr::eq(variables[pair[0]], variables[pair[1]]) {
            crate::invalid!("one variable is passed for two different arguments");
        }
    }
    let mut guards: [Option<MutexGuard<'a, Option<T>>>; N] = std::array::from_fn(|_| None);
    for i in order {
        guards[i] = Some(lock(variables[i]));
    }
    let mut taken = guards.into_iter().flatten();
    Ok(std::array::from_fn(|i| taken.next().unwrap_or_else(|| lock(variables[i]))))
}
