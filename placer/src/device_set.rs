//! The set of devices on which a graph may be placed.

use graph::{DeviceName, DeviceSpec, TaskName};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The devices of a session with their distinct tasks and device types, each numbered from 0.
#[derive(Clone, Debug, Default)]
pub struct DeviceSet {
    devices: Vec<SetDevice>,
    types: Vec<Arc<str>>,
    tasks: Vec<TaskName>,
    by_name: FxHashMap<DeviceName, u32>,
    local: Option<TaskName>,
    default: Option<u32>,
}

/// One device of a set.
#[derive(Clone, Debug)]
pub struct SetDevice {
    pub name: DeviceName,
    /// The full device name, in one allocation that all nodes on the device share.
    pub text: Arc<str>,
    /// The random number that distinguishes a restarted device from its predecessor; it is part of every Send
    /// and Recv.
    pub incarnation: u64,
    /// Index of the device's type in [`DeviceSet::types`].
    pub type_index: u32,
    /// Index of the device's task in [`DeviceSet::tasks`].
    pub task_index: u32,
}

impl DeviceSet {
    /// Creates a set from device names and incarnations. The first of several devices of the same name is
    /// kept.
    pub fn new(devices: impl IntoIterator<Item = (DeviceName, u64)>) -> DeviceSet {
        let mut set = DeviceSet::default();
        for (name, incarnation) in devices {
            if set.by_name.contains_key(&name) {
                continue;
            }
            let type_index = position(&mut set.types, &name.device_type, Arc::clone(&name.device_type));
            let task_index = position(&mut set.tasks, &name.task_name(), name.task_name());
            set.by_name.insert(name.clone(), set.devices.len() as u32);
            let text: Arc<str> = name.to_string().into();
            set.devices.push(SetDevice { name, text, incarnation, type_index, task_index });
        }
        set
    }

    /// Returns the set with `task` as the local process, which is preferred for nodes without a device.
    pub fn with_local(mut self, task: TaskName) -> DeviceSet {
        self.local = Some(task);
        self
    }

    /// Returns the set with a default device, which is preferred to all other devices wherever it is allowed.
    pub fn with_default(mut self, device: usize) -> DeviceSet {
        self.default = (device < self.devices.len()).then_some(device as u32);
        self
    }

    /// Returns the number of devices.
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Returns whether the set has no devices.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Returns the device with an index.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn get(&self, index: u32) -> &SetDevice {
        &self.devices[index as usize]
    }

    /// Iterates over the devices in the order of their indices.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &SetDevice> {
        self.devices.iter()
    }

    /// Returns the index of the device with a name.
    pub fn find(&self, name: &DeviceName) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// Returns the distinct device types, in the order of their first devices.
    pub fn types(&self) -> &[Arc<str>] {
        &self.types
    }

    /// Returns the distinct tasks, in the order of their first devices.
    pub fn tasks(&self) -> &[TaskName] {
        &self.tasks
    }

    /// Returns the task of the local process, if the set has one.
    pub fn local(&self) -> Option<&TaskName> {
        self.local.as_ref()
    }

    pub(crate) fn default_device(&self) -> Option<u32> {
        self.default
    }

    /// Returns the device of the Recvs of feeds and the Sends of fetches: the local task's first CPU, or else
    /// its first device.
    pub fn client_device(&self) -> Option<u32> {
        let local = self.local.as_ref()?;
        let here = |d: &&SetDevice| d.name.task_name() == *local;
        let first =
            self.devices.iter().filter(here).min_by_key(|d| (&*d.name.device_type != "CPU", d.name.id))?;
        self.find(&first.name)
    }

    pub(crate) fn is_local(&self, device: u32) -> bool {
        self.local.as_ref().is_some_and(|local| self.get(device).name.task_name() == *local)
    }

    /// Returns whether a specification names a task other than the local one.
    pub(crate) fn is_remote(&self, spec: &DeviceSpec) -> bool {
        self.local.as_ref().is_some_and(|local| {
            spec.job.as_ref().is_some_and(|j| *j != local.job)
                || spec.replica.is_some_and(|r| r != local.replica)
                || spec.task.is_some_and(|t| t != local.task)
        })
    }

    /// Returns all device names, sorted, for error messages.
    pub(crate) fn names(&self) -> String {
        let mut names: Vec<&str> = self.devices.iter().map(|d| &*d.text).collect();
        names.sort_unstable();
        names.join(", ")
    }

    /// Returns all device types, sorted, for error messages.
    pub(crate) fn type_names(&self) -> String {
        let mut names: Vec<&str> = self.types.iter().map(|t| &**t).collect();
        names.sort_unstable();
        names.join(", ")
    }
}

/// Returns the index of `item`, which is appended if it is missing.
fn position<T: PartialEq>(all: &mut Vec<T>, item: &T, owned: T) -> u32 {
    match all.iter().position(|t| t == item) {
        Some(index) => index as u32,
        None => {
            all.push(owned);
            (all.len() - 1) as u32
        }
    }
}
