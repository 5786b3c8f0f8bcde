//! Devices: processors under the names that a task gives them, with the kernels and the resources that live there.

use crate::error::{Error, Result};
use crate::kernel::KernelDef;
use crate::kernel_table::KernelTable;
use crate::repeat::{Repeater, SegmentInfo};
use crate::resource::ResourceStore;
use crate::shared_block::SharedBlock;
use crate::value::Value;
use crate::window::PeerWindow;
use graph::{DType, DeviceName, Node, Shape, Tensor};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

pub use graph::device::DeviceAttributes;

/// A device of a task. Devices of several names may stand for one processor, with shared resources or with their own.
#[derive(Clone, Debug)]
pub struct Device {
    attributes: DeviceAttributes,
    resources: Arc<ResourceStore>,
    processor: Arc<dyn Processor>,
    kernels: &'static KernelTable,
}

impl Device {
    /// A device whose nodes run kernels of this table, with no resources yet.
    pub fn new(
        attributes: DeviceAttributes,
        processor: Arc<dyn Processor>,
        kernels: &'static KernelTable,
    ) -> Device {
        let resources = Arc::new(ResourceStore::new(&attributes.name.job));
        Device { attributes, resources, processor, kernels }
    }

    /// The same device under another name: a session may know its task by a name of its own.
    pub fn renamed(&self, name: DeviceName) -> Device {
        Device { attributes: DeviceAttributes { name, ..self.attributes.clone() }, ..self.clone() }
    }

    /// The same processor under another name, with resources of its own.
    pub fn isolated(&self, name: DeviceName) -> Device {
        Device { resources: Arc::new(ResourceStore::new(&name.job)), ..self.renamed(name) }
    }

    /// The same device with another processor, such as one that captures the work of kernels.
    pub fn with_processor(&self, processor: Arc<dyn Processor>) -> Device {
        Device { processor, ..self.clone() }
    }

    /// The name, the incarnation and the memory that the device tells the cluster.
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    /// The full name.
    pub fn name(&self) -> &DeviceName {
        &self.attributes.name
    }

    /// The resources that live here.
    #[inline]
    pub fn resources(&self) -> &ResourceStore {
        &self.resources
    }

    /// The memory and the transfers of the device.
    #[inline]
    pub fn processor(&self) -> &dyn Processor {
        &*self.processor
    }

    /// The kernels of the device.
    pub fn kernels(&self) -> &'static KernelTable {
        self.kernels
    }

    /// The kernel for a node, if the device has one.
    pub fn find_kernel(&self, node: &Node) -> Option<&'static KernelDef> {
        self.kernels.find(node)
    }
}

/// A processor with its memory: moves tensors between that memory, the host's and other devices'.
pub trait Processor: Any + Send + Sync + fmt::Debug {
    /// Moves a tensor from host memory into the processor's; the identity where both are one.
    fn upload(&self, tensor: Tensor, done: Transfer<Value>);

    /// Moves a tensor of this processor into host memory.
    fn download(&self, tensor: DeviceTensor, done: Transfer<Tensor>);

    /// Returns a tensor that may be kept beyond its step: a copy, if a captured graph owns its memory.
    ///
    /// # Errors
    /// `ResourceExhausted`, and the device's.
    fn persist(&self, tensor: DeviceTensor) -> Result<DeviceTensor> {
        Ok(tensor)
    }

    /// Returns whether processors of this type in one process [adopt](Processor::adopt) each other's tensors, so that Send
    /// need not bring them into host memory.
    fn can_adopt(&self) -> bool {
        false
    }

    /// Brings a tensor into the processor's memory, from another processor that [adopts](Processor::can_adopt), or from
    /// another process's that [exports](Processor::export); into host memory where the other's cannot be reached.
    fn adopt(&self, tensor: DeviceTensor, done: Transfer<Value>) {
        let DeviceTensor { dtype, shape, .. } = tensor;
        let message = format!("{self:?} adopts no tensors, such as {dtype}{shape}");
        done(Err(Error::internal(message)));
    }

    /// Copies a tensor of [`LEAST`](crate::window::LEAST) bytes or more into a buffer that other processes of this machine
    /// may map, or into host memory if there is no room for such a buffer.
    fn export(&self, tensor: DeviceTensor, done: Transfer<Value>) {
        self.download(tensor, Box::new(move |tensor| done(tensor.map(Value::from))));
    }

    /// Returns whether the processor can read a buffer that another process [exports](Processor::export), whose tensors it then
    /// [adopts](Processor::adopt). May block.
    fn can_access(&self, _window: &PeerWindow) -> bool {
        false
    }

    /// Waits until all work enqueued before has run: nothing to do where kernels run to their end.
    ///
    /// # Errors
    /// The device's.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// Returns whether tensors live in memory other than the host's, so that values move at ports that ask for the other
    /// memory.
    fn has_own_memory(&self) -> bool {
        false
    }

    /// Returns whether kernels only enqueue work, and segments of them may be captured by a [`Processor::repeater`].
    fn can_capture(&self) -> bool {
        false
    }

    /// Returns a runner for a segment, which captures its kernels' work and enqueues it as one.
    ///
    /// # Errors
    /// `Unimplemented` where segments are not captured; the reason why the device cannot be opened.
    fn repeater(&self, segment: SegmentInfo) -> Result<Box<dyn Repeater>> {
        Err(Error::unimplemented(format!("{self:?} does not capture the kernels of {}", segment.name)))
    }
}

/// The host's processors. Kernels run to their end on the thread that calls them, on tensors in host memory.
#[derive(Debug)]
pub struct HostProcessor;

impl Processor for HostProcessor {
    fn upload(&self, tensor: Tensor, done: Transfer<Value>) {
        done(Ok(Value::Host(tensor)));
    }

    fn download(&self, tensor: DeviceTensor, done: Transfer<Tensor>) {
        done(Err(Error::internal(format!("{tensor:?} is not in host memory"))));
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

    /// Returns whether the block has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer in which other processes can map the block from its beginning; `None` if they cannot.
    fn shared_block(&self) -> Option<&dyn SharedBlock> {
        None
    }
}
