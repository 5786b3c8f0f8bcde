//! The devices of one task, by name.

use executor::device::{Device, DeviceTensor, Transfer};
use executor::gpus::{self, GpuOptions, Visible};
use executor::kernel::KernelDef;
use executor::repeat::{Repeater, SegmentInfo};
use executor::resource::ResourceStore;
use executor::window::PeerWindow;
use executor::{CpuDevice, Value};
use graph::{Code, DeviceAttributes, DeviceName, Node, TaskName, Tensor};
use proto::Status;
use std::any::Any;
use std::sync::Arc;

/// The devices of one process, under the names by which one session knows them.
#[derive(Clone, Debug)]
pub(crate) struct Devices(Arc<[Arc<dyn Device>]>);

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
            Arc::new(CpuDevice::new(name, incarnation(), memory_limit)) as Arc<dyn Device>
        };
        let gpus = match gpus::devices(task, gpus, incarnation) {
            Err(error) if error.code() == Code::Unavailable && gpus.visible == Visible::All => Vec::new(),
            found => found.map_err(|error| crate::failure(&error))?,
        };
        Ok(Devices((0..cpus.max(1)).map(cpu).chain(gpus).collect()))
    }

    /// Returns a set of devices that exist already.
    pub(crate) fn of(devices: Vec<Arc<dyn Device>>) -> Devices {
        Devices(devices.into())
    }

    /// Returns the same processors, renamed for `task` and with their own resources.
    pub(crate) fn isolated(&self, task: &TaskName) -> Devices {
        let isolated = |device: &Arc<dyn Device>| {
            let DeviceName { device_type, id, .. } = device.name();
            device.isolated(DeviceName::new(task, device_type, *id))
        };
        Devices(self.0.iter().map(isolated).collect())
    }

    /// Returns the same devices, including their resources, renamed for `task`.
    pub(crate) fn renamed(&self, task: &TaskName) -> Devices {
        let renamed = self.0.iter().map(|device| {
            let mut attributes = device.attributes().clone();
            attributes.name = DeviceName::new(task, &attributes.name.device_type, attributes.name.id);
            Arc::new(Renamed { attributes, device: device.clone() }) as Arc<dyn Device>
        });
        Devices(renamed.collect())
    }

    pub(crate) fn attributes(&self) -> Vec<DeviceAttributes> {
        self.0.iter().map(|d| d.attributes().clone()).collect()
    }

    pub(crate) fn all(&self) -> &Arc<[Arc<dyn Device>]> {
        &self.0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Device>> {
        self.0.iter()
    }

    /// Returns the device with this full name.
    pub(crate) fn find(&self, name: &DeviceName) -> Result<&Arc<dyn Device>, Status> {
        let unknown = || Status::invalid(format!("{name} unknown device."));
        self.0.iter().find(|d| d.name() == name).ok_or_else(unknown)
    }

    /// Returns the device with the name's type and number, whatever its task: sessions may call this task by
    /// another name.
    pub(crate) fn find_local(&self, name: &DeviceName) -> Result<&Arc<dyn Device>, Status> {
        let unknown = || Status::invalid(format!("/device:{}:{} unknown device.", name.device_type, name.id));
        let same = |d: &&Arc<dyn Device>| d.name().device_type == name.device_type && d.name().id == name.id;
        self.0.iter().find(same).ok_or_else(unknown)
    }
}

/// A device under the name by which a session knows it.
#[derive(Debug)]
struct Renamed {
    attributes: DeviceAttributes,
    device: Arc<dyn Device>,
}

impl Device for Renamed {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn resources(&self) -> &ResourceStore {
        self.device.resources()
    }

    fn isolated(&self, name: DeviceName) -> Arc<dyn Device> {
        self.device.isolated(name)
    }

    fn upload(&self, tensor: Tensor, done: Transfer<Value>) {
        self.device.upload(tensor, done);
    }

    fn download(&self, tensor: DeviceTensor, done: Transfer<Tensor>) {
        self.device.download(tensor, done);
    }

    fn keep(&self, tensor: DeviceTensor) -> executor::Result<DeviceTensor> {
        self.device.keep(tensor)
    }

    fn hands_over(&self) -> bool {
        self.device.hands_over()
    }

    fn adopt(&self, tensor: DeviceTensor, done: Transfer<Value>) {
        self.device.adopt(tensor, done);
    }

    fn lend(&self, tensor: DeviceTensor, done: Transfer<Value>) {
        self.device.lend(tensor, done);
    }

    fn sees(&self, window: &PeerWindow) -> bool {
        self.device.sees(window)
    }

    fn synchronize(&self) -> executor::Result<()> {
        self.device.synchronize()
    }

    fn has_own_memory(&self) -> bool {
        self.device.has_own_memory()
    }

    fn repeats(&self) -> bool {
        self.device.repeats()
    }

    fn repeater(&self, segment: SegmentInfo) -> executor::Result<Box<dyn Repeater>> {
        self.device.repeater(segment)
    }

    fn native(&self) -> &dyn Any {
        self.device.native()
    }

    fn find_kernel(&self, node: &Node) -> Option<&'static KernelDef> {
        self.device.find_kernel(node)
    }
}

/// Returns a random, non-zero incarnation.
fn incarnation() -> u64 {
    rand::random::<u64>().max(1)
}
