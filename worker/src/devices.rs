//! The devices of one task, by name.

use executor::CpuDevice;
use executor::device::Device;
use graph::{DeviceAttributes, DeviceName, TaskName};
use proto::Status;
use std::sync::Arc;

/// Devices of one process, under the names that one session knows them by.
#[derive(Clone, Debug)]
pub(crate) struct Devices(Arc<[Arc<dyn Device>]>);

impl Devices {
    /// New devices with new incarnations.
    pub(crate) fn new(task: &TaskName, cpus: u32, memory_limit: u64) -> Devices {
        Devices::cpus(task, (0..cpus.max(1)).map(|_| (incarnation(), memory_limit)))
    }

    /// The same processors with resources of their own, in the task's name.
    pub(crate) fn isolated(&self, task: &TaskName) -> Devices {
        let of = self.0.iter().map(|d| (d.attributes().incarnation, d.attributes().memory_limit));
        Devices::cpus(task, of)
    }

    fn cpus(task: &TaskName, of: impl Iterator<Item = (u64, u64)>) -> Devices {
        let device = |(id, (incarnation, limit)): (u32, (u64, u64))| {
            Arc::new(CpuDevice::new(DeviceName::new(task, "CPU", id), incarnation, limit)) as Arc<dyn Device>
        };
        Devices((0..).zip(of).map(device).collect())
    }

    pub(crate) fn attributes(&self) -> Vec<DeviceAttributes> {
        self.0.iter().map(|d| d.attributes().clone()).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Device>> {
        self.0.iter()
    }

    /// The device with this full name.
    pub(crate) fn find(&self, name: &DeviceName) -> Result<&Arc<dyn Device>, Status> {
        let unknown = || Status::invalid(format!("{name} unknown device."));
        self.0.iter().find(|d| d.name() == name).ok_or_else(unknown)
    }

    /// The device of this type and number, whatever task the name says: sessions may know it by another.
    pub(crate) fn find_local(&self, name: &DeviceName) -> Result<&Arc<dyn Device>, Status> {
        let unknown = || Status::invalid(format!("/device:{}:{} unknown device.", name.device_type, name.id));
        let same = |d: &&Arc<dyn Device>| d.name().device_type == name.device_type && d.name().id == name.id;
        self.0.iter().find(same).ok_or_else(unknown)
    }
}

/// Random and non-zero.
fn incarnation() -> u64 {
    rand::random::<u64>().max(1)
}
