//! Variables: tensors that steps share, read by snapshot and written in place.

mod brought;
mod kept;
mod replica;
mod set_aside;
mod snapshot;

pub use brought::Brought;
pub use replica::{VariableSlices, VariableState};
pub use set_aside::SetAside;
pub use snapshot::{Aside, Snapshot};

use crate::device::{Device, DeviceTensor};
use crate::error::{Error, Result};
use crate::handle::{HandleInput, one_handle};
use crate::journal::{Record, Replica};
use crate::kernel::{KernelContext, KernelInit};
use crate::resource::{Resource, ResourceStore};
use crate::value::Value;
use graph::{Code, DType, PartialShape, ResourceHandle, Tensor};
use parking_lot::{Mutex, MutexGuard, RwLockReadGuard};
use smallvec::SmallVec;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock, Weak};

/// A mutable tensor, with no value until the first assignment.
///
/// A reader takes a snapshot that shares storage; a writer that finds storage shared copies it first, so that
/// what a reader holds never changes under it.
#[derive(Debug)]
pub struct Variable {
    name: Arc<str>,
    dtype: DType,
    shape: PartialShape,
    held: Mutex<Held>,
    /// The value of a variable whose device has memory of its own; then `held` has none.
    device_value: Mutex<Option<DeviceTensor>>,
    /// Of a variable that has a replica.
    record: OnceLock<Record>,
}

#[derive(Debug, Default)]
struct Held {
    value: Option<Tensor>,
    /// What was set aside of the value and is still in it.
    aside: SmallVec<[Weak<SetAside>; 1]>,
}

impl Variable {
    pub fn new(name: impl Into<Arc<str>>, dtype: DType, shape: PartialShape) -> Variable {
        let (held, device_value) = (Mutex::default(), Mutex::default());
        Variable { name: name.into(), dtype, shape, held, device_value, record: OnceLock::new() }
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
        self.held.lock().value.clone()
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

    /// Sets the value aside, which this device holds: it is to be had as it is now, whatever becomes of the variable.
    ///
    /// # Errors
    /// As [`Variable::value`].
    pub fn set_aside(self: &Arc<Variable>, device: &Device) -> Result<Aside> {
        // Nobody changes it before the copy is enqueued.
        if let Some(value) = &*self.lock_device() {
            return Ok(Aside::Brought(Brought::start(device, &self.name, value.clone())));
        }
        self.set_aside_in_place().map(Aside::InPlace)
    }

    fn set_aside_in_place(self: &Arc<Variable>) -> Result<Arc<SetAside>> {
        let mut held = self.held.lock();
        let value = held.value.as_ref().ok_or_else(|| self.uninitialized())?;
        let aside = Arc::new(SetAside::new(self.clone(), value));
        if aside.is_in_variable() {
            held.aside.push(Arc::downgrade(&aside));
        }
        Ok(aside)
    }

    /// Changes the value in place, exclusively.
    ///
    /// # Errors
    /// As [`Variable::value`], and those of `change`.
    pub fn update<R>(&self, change: impl FnOnce(&mut Tensor) -> Result<R>) -> Result<R> {
        match self.lock().as_mut() {
            Some(value) => change(value),
            None => Err(self.uninitialized()),
        }
    }

    /// The error of a read before the first assignment.
    pub fn uninitialized(&self) -> Error {
        Error::new(Code::FailedPrecondition, format!("Attempting to use uninitialized value {}", self.name))
    }

    /// The value for writing, exclusively: keep it short, readers wait.
    pub fn lock(&self) -> Locked<'_> {
        let record = self.record.get();
        let not_taken = record.map(Record::hold);
        Locked { held: self.held.lock(), record, not_taken }
    }

    /// As [`Variable::lock`], of one of several that are locked together.
    fn lock_beside(&self) -> Locked<'_> {
        Locked { held: self.held.lock(), record: self.record.get(), not_taken: None }
    }

    /// As [`Variable::lock`], of a variable whose device has memory of its own.
    pub fn lock_device(&self) -> MutexGuard<'_, Option<DeviceTensor>> {
        self.device_value.lock()
    }

    pub fn is_initialized(&self) -> bool {
        self.held.lock().value.is_some() || self.device_value.lock().is_some()
    }

    /// As [`Variable::is_initialized`], but it waits for nobody: what is being written may have no value yet.
    pub fn may_be_initialized(&self) -> bool {
        self.held.try_lock().is_none_or(|held| held.value.is_some())
            || self.device_value.try_lock().is_none_or(|value| value.is_some())
    }
}

/// A variable's value, which nobody else reads or writes meanwhile. What was set aside of it stays as it is.
#[derive(Debug)]
pub struct Locked<'a> {
    held: MutexGuard<'a, Held>,
    record: Option<&'a Record>,
    /// Of a variable that has a replica: its state is not taken meanwhile.
    not_taken: Option<RwLockReadGuard<'a, ()>>,
}

impl Deref for Locked<'_> {
    type Target = Option<Tensor>;

    fn deref(&self) -> &Option<Tensor> {
        &self.held.value
    }
}

impl DerefMut for Locked<'_> {
    /// All of it may change.
    fn deref_mut(&mut self) -> &mut Option<Tensor> {
        if let Some(record) = self.record {
            record.changes();
        }
        let Held { value, aside } = &mut *self.held;
        for aside in aside.drain(..).filter_map(|aside| aside.upgrade()) {
            value.iter().for_each(|value| aside.keep_all(value));
        }
        value
    }
}

impl Locked<'_> {
    /// The value, of whose slices of `length` elements only those of these numbers change.
    pub fn slices_mut(
        &mut self,
        slices: impl Iterator<Item = usize> + Clone,
        length: usize,
    ) -> Result<&mut Option<Tensor>> {
        let Held { value, aside } = &mut *self.held;
        aside.retain(|aside| aside.strong_count() > 0);
        if let Some(value) = &*value {
            if let Some(record) = self.record {
                record.changes_slices(slices.clone(), length, value.num_elements());
            }
            let size = length * value.dtype().size().unwrap_or(0);
            for aside in aside.iter().filter_map(Weak::upgrade) {
                aside.keep(value, slices.clone(), size)?;
            }
        }
        Ok(value)
    }
}

/// The variable behind a resource handle (`VarHandleOp`).
impl Resource for Variable {
    const KIND: &'static str = "Var";

    fn replica(resource: &Arc<Variable>) -> Replica {
        Replica::Follows(resource.clone())
    }
}

/// The variable behind a reference (`VariableV2`): another kind, so that the two never share a name.
#[derive(Debug)]
pub struct RefVariable(pub Arc<Variable>);

impl Resource for RefVariable {
    const KIND: &'static str = "LegacyVar";

    fn replica(resource: &Arc<RefVariable>) -> Replica {
        Replica::Follows(resource.0.clone())
    }
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
pub fn lock_all<'a, const N: usize>(variables: [&'a Variable; N]) -> Result<[Locked<'a>; N]> {
    // All are of one journal: they are taken together, and who waits for it holds no lock.
    let not_taken = variables.iter().find_map(|variable| variable.record.get()).map(Record::hold);
    let mut locked = lock_each(variables, Variable::lock_beside)?;
    if let Some(first) = locked.first_mut() {
        first.not_taken = not_taken;
    }
    Ok(locked)
}

/// As [`lock_all`], of variables whose device has memory of its own.
pub fn lock_all_on_device<'a, const N: usize>(
    variables: [&'a Variable; N],
) -> Result<[MutexGuard<'a, Option<DeviceTensor>>; N]> {
    lock_each(variables, Variable::lock_device)
}

fn lock_each<'a, L, const N: usize>(
    variables: [&'a Variable; N],
    lock: impl Fn(&'a Variable) -> L,
) -> Result<[L; N]> {
    let mut order: [usize; N] = std::array::from_fn(|i| i);
    order.sort_by_key(|&i| std::ptr::from_ref(variables[i]) as usize);
    for pair in order.windows(2) {
        if std::ptr::eq(variables[pair[0]], variables[pair[1]]) {
            crate::invalid!("one variable is passed for two different arguments");
        }
    }
    let mut guards: [Option<L>; N] = std::array::from_fn(|_| None);
    for i in order {
        guards[i] = Some(lock(variables[i]));
    }
    let mut taken = guards.into_iter().flatten();
    Ok(std::array::from_fn(|i| taken.next().unwrap_or_else(|| lock(variables[i]))))
}
