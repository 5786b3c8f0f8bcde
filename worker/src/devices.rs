//! The devices of one task, by name.

use crate::gpus;
use device::Device;
use device::debug_stream::DebugStreams;
use device::gpu_options::{GpuOptions, GpuSelection};
use graph::{Code, DeviceAttributes, DeviceName, TaskName};
use proto::Status;
use std::sync::Arc;

/// The devices of one process, named as one session names them: sessions may call the same task by different
/// names.
#[derive(Clone, Debug)]
pub(crate) struct Devices(Arc<[Arc<Device>]>);

impl Devices {
    /// Creates devices with new incarnations.
    ///
    /// # Errors
    /// `InvalidArgument` for inconsistent GPU options. A machine without GPUs is no error unless the options
    /// name some.
    pub(crate) fn new(
        task: &TaskName,
        cpus: u32,
        memory_limit: u64,
        gpus: &GpuOptions,
    ) -> Result<Devices, Status> {
        let cpu = |id| {
            let name = DeviceName::new(task, "CPU", id);
            Arc::new(kernels::device(name, incarnation(), memory_limit))
        };
        let gpus = match gpus::devices(task, gpus, incarnation) {
            Err(error) if error.code() == Code::Unavailable && gpus.visible == GpuSelection::All => {
                Vec::new()
            }
            found => found.map_err(|error| crate::failure(&error))?,
        };
        Ok(Devices((0..cpus.max(1)).map(cpu).chain(gpus).collect()))
    }

    /// Makes a `Devices` of existing devices.
    pub(crate) fn of(devices: Vec<Arc<Device>>) -> Devices {
        Devices(devices.into())
    }

    /// Returns new devices of `task` on these devices' processors, with empty resource stores of their own.
    pub(crate) fn isolated(&self, task: &TaskName) -> Devices {
        let isolated = |device: &Arc<Device>| {
            let DeviceName { device_type, id, .. } = device.name();
            Arc::new(device.isolated(DeviceName::new(task, device_type, *id)))
        };
        Devices(self.0.iter().map(isolated).collect())
    }

    /// Returns these devices renamed for `task`; the renamed devices share the resources of the originals.
    pub(crate) fn renamed(&self, task: &TaskName) -> Devices {
        let renamed = |device: &Arc<Device>| {
            let DeviceName { device_type, id, .. } = device.name();
            Arc::new(device.renamed(DeviceName::new(task, device_type, *id)))
        };
        Devices(self.0.iter().map(renamed).collect())
    }

    /// Returns these devices with the streams of their server to debuggers.
    pub(crate) fn with_debug_streams(&self, streams: &Arc<dyn DebugStreams>) -> Devices {
        Devices(self.0.iter().map(|device| Arc::new(device.with_debug_streams(streams.clone()))).collect())
    }

    pub(crate) fn attributes(&self) -> Vec<DeviceAttributes> {
        self.0.iter().map(|d| d.attributes().clone()).collect()
    }

    pub(crate) fn all(&self) -> &Arc<[Arc<Device>]> {
        &self.0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Device>> {
        self.0.iter()
    }

    /// Returns the device with this full name.
    pub(crate) fn find(&self, name: &DeviceName) -> Result<&Arc<Device>, Status> {
        let unknown = || Status::invalid(format!("{name} unknown device."));
        self.0.iter().find(|d| d.name() == name).ok_or_else(unknown)
    }

    /// Returns the device with the name's type and number, whatever its task: sessions may call this task by
    /// another name.
    pub(crate) fn find_local(&self, name: &DeviceName) -> Result<&Arc<Device>, Status> {
        let unknown = || Status::invalid(format!("/device:{}:{} unknown device.", name.device_type, name.id));
        let same = |d: &&Arc<Device>| d.name().device_type == name.device_type && d.name().id == name.id;
        self.0.iter().find(same).ok_or_else(unknown)
    }
}

/// Returns a random, non-zero incarnation.
fn incarnation() -> u64 {
    rand::random::<u64>().max(1)
}
