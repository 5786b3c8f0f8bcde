//! Devices: where kernels run and where their tensors live.

use crate::error::{Error, Result};
use crate::kernel::KernelDef;
use crate::kernels;
use crate::repeat::{Repeater, SegmentInfo};
use crate::resource::ResourceStore;
use crate::shared_block::SharedBlock;
use crate::value::Value;
use crate::window::PeerWindow;
use graph::{DType, DeviceName, Node, Shape, Tensor};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

pub use crate::cpu_device::CpuDevice;
pub use graph::device::DeviceAttributes;

/// A processor with memory of its own. Kernels are chosen by the name's device type.
pub trait Device: Send + Sync + fmt::Debug {
    fn attributes(&self) -> &DeviceAttributes;

    /// The resources that live here.
    fn resources(&self) -> &ResourceStore;

    /// Moves a tensor into the device's memory; the identity where that is the host's.
    fn upload(&self, tensor: Tensor, done: Transfer<Value>);

    /// Moves a tensor of this device into host memory.
    fn download(&self, tensor: DeviceTensor, done: Transfer<Tensor>);

    /// A tensor of its own as whoever keeps it from step to step is to hold it: elsewhere, if where it is was lent for a step.
    ///
    /// # Errors
    /// `ResourceExhausted`, and the device's.
    fn keep(&self, tensor: DeviceTensor) -> Result<DeviceTensor> {
        Ok(tensor)
    }

    /// Whether devices of its type in one process [take over](Device::adopt) each other's tensors, so that Send need not
    /// bring them into host memory.
    fn hands_over(&self) -> bool {
        false
    }

    /// Brings a tensor of another device that [hands over](Device::hands_over) or [lends](Device::lend), or of its own, into
    /// its memory; into the host's where it cannot reach the other's.
    fn adopt(&self, tensor: DeviceTensor, done: Transfer<Value>) {
        let DeviceTensor { dtype, shape, .. } = tensor;
        let message = format!("{} takes over no tensors, such as {dtype}{shape}", self.name());
        done(Err(Error::internal(message)));
    }

    /// Brings a copy of a tensor of its own, of [`LEAST`](crate::window::LEAST) bytes or more, where devices of its type in
    /// other processes of this machine [see](Device::sees) it; into the host's memory, if there is no room for it there.
    fn lend(&self, tensor: DeviceTensor, done: Transfer<Value>) {
        self.download(tensor, Box::new(move |tensor| done(tensor.map(Value::from))));
    }

    /// Whether it can look into memory of another process's device, whose tensors it then [takes over](Device::adopt). May
    /// wait.
    fn sees(&self, _window: &PeerWindow) -> bool {
        false
    }

    /// Waits until everything enqueued so far has run: nothing to do where kernels run to their end.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// Whether tensors live in memory of the device's own, so that values move at ports that say otherwise.
    fn has_own_memory(&self) -> bool {
        false
    }

    /// Whether kernels only enqueue, and segments of them may be enqueued as one: by what [`Device::repeater`] gives.
    fn repeats(&self) -> bool {
        false
    }

    /// What runs a segment.
    ///
    /// # Errors
    /// `Unimplemented` where segments are not repeated; why the device cannot be opened.
    fn repeater(&self, segment: SegmentInfo) -> Result<Box<dyn Repeater>> {
        let message = format!("{} does not repeat the kernels of {}", self.name(), segment.name);
        Err(Error::unimplemented(message))
    }

    /// The same processor under another name, with resources of its own.
    fn isolated(&self, name: DeviceName) -> Arc<dyn Device>;

    /// The device as kernels of its type know it, whatever name a session calls it by. Those of the CPU need nothing of
    /// theirs.
    fn native(&self) -> &dyn Any {
        &()
    }

    /// The kernel for a node; as a rule, that of the device's type.
    fn find_kernel(&self, node: &Node) -> Option<&'static KernelDef> {
        kernels::find(&self.name().device_type, node)
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

    /// What other processes see it in, from its beginning on; `None` if they cannot.
    fn shared_block(&self) -> Option<&dyn SharedBlock> {
        None
    }
}
