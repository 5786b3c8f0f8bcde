//! Devices: where kernels run and where their tensors live.

use crate::error::Result;
use crate::resource::ResourceStore;
use graph::{DType, DeviceName, Shape, Tensor};

pub use graph::device::DeviceAttributes;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A processor with memory of its own. Kernels are chosen by the name's device type.
pub trait Device: Send + Sync + fmt::Debug {
    fn attributes(&self) -> &DeviceAttributes;

    /// The resources that live here.
    fn resources(&self) -> &ResourceStore;

    /// Moves a tensor into the device's memory; the identity where that is the host's.
    fn upload(&self, tensor: Tensor, done: Transfer<crate::value::Value>);

    /// Moves a tensor of this device into host memory.
    fn download(&self, tensor: DeviceTensor, done: Transfer<Tensor>);

    /// Waits until everything enqueued so far has run: nothing to do where kernels run to their end.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn name(&self) -> &DeviceName {
        &self.attributes().name
    }
}

/// Called once, when a transfer has ended.
pub type Transfer<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// A tensor in a device's memory. Its memory is freed after the last work that reads it.
#[derive(Clone, Debug)]
pub struct DeviceTensor {
    pub dtype: DType,
    pub shape: Shape,
    pub memory: Arc<dyn DeviceMemory>,
}

/// A block of a device's memory, known in full only to the device that made it.
pub trait DeviceMemory: Any + Send + Sync + fmt::Debug {
    /// Bytes.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
