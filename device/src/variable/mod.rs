//! Variables: mutable tensors that steps share, read by snapshot and written in place.

mod device_snapshot;
mod in_place_snapshot;
mod replica;
mod saved_blocks;
mod snapshot;

pub use device_snapshot::DeviceSnapshot;
pub use in_place_snapshot::InPlaceSnapshot;
pub use replica::{VariableSlices, VariableState};
pub use snapshot::{Snapshot, VariableSnapshot};

use crate::device::{Device, DeviceTensor};
use crate::error::{Error, Result};
use crate::handle::{HandleInput, single_handle};
use crate::journal::{Record, Replica};
use crate::kernel::{KernelContext, KernelInit};
use crate::resource::{Resource, ResourceStore};
use crate::value::Value;
use graph::{Code, DType, PartialShape, ResourceHandle, Tensor};
use parking_lot::{Mutex, MutexGuard, RwLockReadGuard};
use smallvec::SmallVec;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock, Weak};

/// A mutable tensor, without a value until the first assignment.
///
/// A reader takes a snapshot that shares the buffer. A writer that finds the buffer shared copies it first, so that a
/// reader's snapshot never changes.
#[derive(Debug)]
pub struct Variable {
    name: Arc<str>,
    dtype: DType,
    shape: PartialShape,
    host_value: Mutex<HostValue>,
    /// The value of a variable whose device has its own memory; `host_value` is then empty.
    device_value: Mutex<Option<DeviceTensor>>,
    /// The access to the journal of the variable's resource store, in which the variable notes its changes for the
    /// standby process that replicates them; empty if the variable is not replicated.
    record: OnceLock<Record>,
}

#[derive(Debug, Default)]
struct HostValue {
    value: Option<Tensor>,
    /// The snapshots that still read the value from the variable.
    snapshots: SmallVec<[Weak<InPlaceSnapshot>; 1]>,
}

impl Variable {
    /// Creates a variable without a value.
    pub fn new(name: impl Into<Arc<str>>, dtype: DType, shape: PartialShape) -> Variable {
        let (host_value, device_value) = (Mutex::default(), Mutex::default());
        Variable { name: name.into(), dtype, shape, host_value, device_value, record: OnceLock::new() }
    }

    /// Returns the name of the node that created the variable, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the declared shape; values may have a more specific one.
    pub fn shape(&self) -> &PartialShape {
        &self.shape
    }

    /// Returns a snapshot of the value in host memory; `None` before the first assignment.
    pub fn read(&self) -> Option<Tensor> {
        self.host_value.lock().value.clone()
    }

    /// Returns a snapshot of the value in host memory.
    ///
    /// # Errors
    /// `FailedPrecondition` before the first assignment. Clients match this text.
    pub fn value(&self) -> Result<Tensor> {
        self.read().ok_or_else(|| self.uninitialized())
    }

    /// Returns a snapshot of the value in either memory; `None` before the first assignment.
    pub fn snapshot(&self) -> Option<Value> {
        if let Some(tensor) = self.read() {
            return Some(tensor.into());
        }
        self.lock_device().clone().map(Value::from)
    }

    /// Takes a snapshot of the value of this variable of `device`, to be read later while the variable changes.
    ///
    /// # Errors
    /// Those of [`Variable::value`].
    pub fn take_snapshot(self: &Arc<Variable>, device: &Device) -> Result<VariableSnapshot> {
        // The lock is held until the copy is enqueued, so that no change is enqueued before it.
        if let Some(value) = &*self.lock_device() {
            return Ok(VariableSnapshot::Device(DeviceSnapshot::start(device, &self.name, value.clone())));
        }
        self.snapshot_in_place().map(VariableSnapshot::InPlace)
    }

    fn snapshot_in_place(self: &Arc<Variable>) -> Result<Arc<InPlaceSnapshot>> {
        let mut guarded = self.host_value.lock();
        let value = guarded.value.as_ref().ok_or_else(|| self.uninitialized())?;
        let snapshot = Arc::new(InPlaceSnapshot::new(self.clone(), value));
        if snapshot.is_in_variable() {
            guarded.snapshots.push(Arc::downgrade(&snapshot));
        }
        Ok(snapshot)
    }

    /// Changes the value in place, under the lock.
    ///
    /// # Errors
    /// Those of [`Variable::value`] and of `change`.
    pub fn update<R>(&self, change: impl FnOnce(&mut Tensor) -> Result<R>) -> Result<R> {
        match self.lock().as_mut() {
            Some(value) => change(value),
            None => Err(self.uninitialized()),
        }
    }

    /// Creates the error of a read before the first assignment.
    pub fn uninitialized(&self) -> Error {
        Error::new(Code::FailedPrecondition, format!("Attempting to use uninitialized value {}", self.name))
    }

    /// Locks the value for writing. The lock should be held briefly, because readers wait for it.
    pub fn lock(&self) -> Locked<'_> {
        let record = self.record.get();
        let collection_guard = record.map(Record::delay_collection);
        Locked { guarded: self.host_value.lock(), record, collection_guard }
    }

    /// Locks the value like [`Variable::lock`], but without delaying a journal's collection, which [`lock_all`] does
    /// once for all its variables.
    fn lock_without_collection_guard(&self) -> Locked<'_> {
        Locked { guarded: self.host_value.lock(), record: self.record.get(), collection_guard: None }
    }

    /// Locks the value of a variable whose device has its own memory.
    pub fn lock_device(&self) -> MutexGuard<'_, Option<DeviceTensor>> {
        self.device_value.lock()
    }

    /// Returns whether the variable has a value.
    pub fn is_initialized(&self) -> bool {
        self.host_value.lock().value.is_some() || self.device_value.lock().is_some()
    }

    /// Returns whether the variable has a value, without waiting for a lock. A locked variable counts as initialized,
    /// although its writer may not have stored a value yet.
    pub fn may_be_initialized(&self) -> bool {
        self.host_value.try_lock().is_none_or(|guarded| guarded.value.is_some())
            || self.device_value.try_lock().is_none_or(|value| value.is_some())
    }
}

/// A variable's locked value, which no other thread reads or writes. Snapshots of it are preserved.
#[derive(Debug)]
pub struct Locked<'a> {
    guarded: MutexGuard<'a, HostValue>,
    record: Option<&'a Record>,
    /// Delays collections of the journal, if the variable has a replica.
    collection_guard: Option<RwLockReadGuard<'a, ()>>,
}

impl Deref for Locked<'_> {
    type Target = Option<Tensor>;

    fn deref(&self) -> &Option<Tensor> {
        &self.guarded.value
    }
}

impl DerefMut for Locked<'_> {
    /// Returns the value for any change: the journal notes a change of the whole value, and snapshots keep the old
    /// value.
    fn deref_mut(&mut self) -> &mut Option<Tensor> {
        if let Some(record) = self.record {
            record.note_change();
        }
        let HostValue { value, snapshots } = &mut *self.guarded;
        for snapshot in snapshots.drain(..).filter_map(|snapshot| snapshot.upgrade()) {
            value.iter().for_each(|value| snapshot.detach(value));
        }
        value
    }
}

impl Locked<'_> {
    /// Returns the value, of which the caller may change only the slices with the indices `slices`, of `length`
    /// elements each.
    pub fn slices_mut(
        &mut self,
        slices: impl Iterator<Item = usize> + Clone,
        length: usize,
    ) -> Result<&mut Option<Tensor>> {
        let HostValue { value, snapshots } = &mut *self.guarded;
        snapshots.retain(|snapshot| snapshot.strong_count() > 0);
        if let Some(value) = &*value {
            if let Some(record) = self.record {
                record.note_slice_changes(slices.clone(), length, value.num_elements());
            }
            let size = length * value.dtype().size().unwrap_or(0);
            for snapshot in snapshots.iter().filter_map(Weak::upgrade) {
                snapshot.save_slices(value, slices.clone(), size)?;
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

/// The variable behind a reference (`VariableV2`). Its kind is different from that of [`Variable`], so that the two
/// never share a name.
#[derive(Debug)]
pub struct RefVariable(pub Arc<Variable>);

impl Resource for RefVariable {
    const KIND: &'static str = "LegacyVar";

    fn replica(resource: &Arc<RefVariable>) -> Replica {
        Replica::Follows(resource.0.clone())
    }
}

/// An input of a kernel that refers to a variable by reference or by handle.
#[derive(Debug)]
pub struct VariableInput {
    input: usize,
    /// The lookup by handle; `None` if the input is a reference.
    found: Option<HandleInput<Variable>>,
}

impl VariableInput {
    /// Creates the access to the variable that input number `input` of a node refers to.
    pub fn new(init: &KernelInit<'_>, input: usize) -> VariableInput {
        let is_ref = init.inputs.get(input).is_some_and(|port| port.is_ref);
        VariableInput { input, found: if is_ref { None } else { Some(HandleInput::default()) } }
    }

    /// Returns whether the input is a reference.
    pub fn is_ref(&self) -> bool {
        self.found.is_none()
    }

    /// Returns the variable that the input refers to.
    ///
    /// # Errors
    /// `NotFound` if the handle refers to no variable.
    pub fn get(&self, ctx: &KernelContext<'_>) -> Result<Arc<Variable>> {
        self.get_or(ctx, |store, handle| store.lookup(&handle.container, &handle.name))
    }

    /// Returns the variable that the input refers to, or the result of `otherwise` if the handle refers to none.
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

    /// Returns the handle in the input.
    pub fn handle<'a>(&self, ctx: &'a KernelContext<'_>) -> Result<&'a ResourceHandle> {
        single_handle(ctx.input(self.input)?)
    }
}

/// Locks several variables in one global order, so that two kernels that lock the same variables cannot deadlock. Each
/// variable may appear once.
pub fn lock_all<'a, const N: usize>(variables: [&'a Variable; N]) -> Result<[Locked<'a>; N]> {
    // The variables share one journal. The journal's lock is taken first and only once: a thread that waits for a
    // collection must hold no variable's lock, and the changes of all variables are to be collected together.
    let collection_guard =
        variables.iter().find_map(|variable| variable.record.get()).map(Record::delay_collection);
    let mut locked = lock_each(variables, Variable::lock_without_collection_guard)?;
    if let Some(first) = locked.first_mut() {
        first.collection_guard = collection_guard;
    }
    Ok(locked)
}

/// Locks variables whose device has its own memory, like [`lock_all`].
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
