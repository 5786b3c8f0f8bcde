//! The device of the process's CPUs, whose memory is the host's.

use crate::device::{Device, DeviceAttributes, DeviceTensor, Transfer};
use crate::error::Error;
use crate::resource::ResourceStore;
use crate::value::Value;
use graph::{DeviceName, TaskName, Tensor};
use std::sync::Arc;

/// The CPUs of one task. Kernels run to their end on the thread that calls them.
#[derive(Debug)]
pub struct CpuDevice {
    attributes: DeviceAttributes,
    resources: ResourceStore,
}

impl CpuDevice {
    /// `incarnation` is random and new at each start of the process; `memory_limit`, in bytes, is what the
    /// device tells the cluster.
    pub fn new(name: DeviceName, incarnation: u64, memory_limit: u64) -> CpuDevice {
        let resources = ResourceStore::new(&name.job);
        let attributes =
            DeviceAttributes { name, memory_limit, incarnation, physical_description: String::new() };
        CpuDevice { attributes, resources }
    }
}

/// A device outside any cluster.
impl Default for CpuDevice {
    fn default() -> CpuDevice {
        CpuDevice::new(DeviceName::new(&TaskName::new("localhost", 0), "CPU", 0), 1, 1 << 28)
    }
}

impl Device for CpuDevice {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn resources(&self) -> &ResourceStore {
        &self.resources
    }

    fn isolated(&self, name: DeviceName) -> Arc<dyn Device> {
        Arc::new(CpuDevice::new(name, self.attributes.incarnation, self.attributes.memory_limit))
    }

    fn upload(&self, tensor: Tensor, done: Transfer<Value>) {
        done(Ok(Value::Host(tensor)));
    }

    fn download(&self, tensor: DeviceTensor, done: Transfer<Tensor>) {
        done(Err(Error::internal(format!("{tensor:?} is not in the memory of {}", self.name()))));
    }
}
