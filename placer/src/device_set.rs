//! The devices that a graph may be spread over.

use graph::{DeviceName, DeviceSpec, TaskName};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The devices of a session, numbered densely. Tasks and device types have numbers too.
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
    /// The full name as text, one allocation for all who write it.
    pub text: Arc<str>,
    /// Tells a restarted device from the old one; it goes into every Send and Recv.
    pub incarnation: u64,
    /// The device's type, as an index into [`DeviceSet::types`].
    pub type_index: u32,
    /// The device's task, as an index into [`DeviceSet::tasks`].
    pub task_index: u32,
}

impl DeviceSet {
    /// A set of devices with their incarnations. Of two devices with one name the first stays.
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

    /// The set with one task as the own process: nodes that may go anywhere go there.
    pub fn with_local(mut self, task: TaskName) -> DeviceSet {
        self.local = Some(task);
        self
    }

    /// The set with a device that is preferred to all others wherever it is allowed.
    pub fn with_default(mut self, device: usize) -> DeviceSet {
        self.default = (device < self.devices.len()).then_some(device as u32);
        self
    }

    pub fn len(&self) -> usize {
        self.devices.len()
    }

    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// # Panics
    /// If the index is out of range.
    pub fn get(&self, index: u32) -> &SetDevice {
        &self.devices[index as usize]
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &SetDevice> {
        self.devices.iter()
    }

    pub fn find(&self, name: &DeviceName) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// The distinct device types, in the order of their first devices.
    pub fn types(&self) -> &[Arc<str>] {
        &self.types
    }

    pub fn tasks(&self) -> &[TaskName] {
        &self.tasks
    }

    pub fn local(&self) -> Option<&TaskName> {
        self.local.as_ref()
    }

    pub(crate) fn default_device(&self) -> Option<u32> {
        self.default
    }

    /// The device where feeds enter and fetches leave: the local task's first CPU, or its first device.
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

    /// Whether a specification names another process than the own.
    pub(crate) fn is_remote(&self, spec: &DeviceSpec) -> bool {
        self.local.as_ref().is_some_and(|local| {
            spec.job.as_ref().is_some_and(|j| *j != local.job)
                || spec.replica.is_some_and(|r| r != local.replica)
                || spec.task.is_some_and(|t| t != local.task)
        })
    }

    /// All names, in their order, for messages.
    pub(crate) fn names(&self) -> String {
        let mut names: Vec<&str> = self.devices.iter().map(|d| &*d.text).collect();
        names.sort_unstable();
        names.join(", ")
    }

    /// The types, in their order, for messages.
    pub(crate) fn type_names(&self) -> String {
        let mut names: Vec<&str> = self.types.iter().map(|t| &**t).collect();
        names.sort_unstable();
        names.join(", ")
    }
}

fn position<T: PartialEq>(all: &mut Vec<T>, item: &T, owned: T) -> u32 {
    match all.iter().position(|t| t == item) {
        Some(index) => index as u32,
        None => {
            all.push(owned);
            (all.len() - 1) as u32
        }
    }
}
