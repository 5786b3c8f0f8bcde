//! Devices: named processors of a task, with their kernels and their resources.

use crate::debug_stream::DebugStreams;
use crate::device_collectives::DeviceCollectives;
use crate::error::{Error, Result};
use crate::kernel::KernelDef;
use crate::kernel_table::KernelTable;
use crate::peer_buffer::PeerBuffer;
use crate::resource::ResourceStore;
use crate::segment_runner::{SegmentInfo, SegmentRunner};
use crate::shared_block::SharedBlock;
use crate::value::Value;
use graph::{DType, DeviceName, Node, Shape, Tensor};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

pub use graph::device::DeviceAttributes;

/// A device of a task. Several devices may use the same processor; they either use the same resource store or have one
/// store each.
#[derive(Clone, Debug)]
pub struct Device {
    attributes: DeviceAttributes,
    resources: Arc<ResourceStore>,
    processor: Arc<dyn Processor>,
    kernels: &'static KernelTable,
    debug_streams: Option<Arc<dyn DebugStreams>>,
}

impl Device {
    /// Creates a device with an empty resource store, whose nodes run the kernels of the table `kernels`.
    pub fn new(
        attributes: DeviceAttributes,
        processor: Arc<dyn Processor>,
        kernels: &'static KernelTable,
    ) -> Device {
        let resources = Arc::new(ResourceStore::new(&attributes.name.job));
        Device { attributes, resources, processor, kernels, debug_streams: None }
    }

    /// Returns the same device under another name, because a session may know its task by a different name.
    pub fn renamed(&self, name: DeviceName) -> Device {
        Device { attributes: DeviceAttributes { name, ..self.attributes.clone() }, ..self.clone() }
    }

    /// Returns a device with the same processor, another name and a new, empty resource store.
    pub fn isolated(&self, name: DeviceName) -> Device {
        Device { resources: Arc::new(ResourceStore::new(&name.job)), ..self.renamed(name) }
    }

    /// Returns the same device with another processor, such as one that captures the work of kernels.
    pub fn with_processor(&self, processor: Arc<dyn Processor>) -> Device {
        Device { processor, ..self.clone() }
    }

    /// Returns the same device with the server's streams to debuggers.
    pub fn with_debug_streams(&self, streams: Arc<dyn DebugStreams>) -> Device {
        Device { debug_streams: Some(streams), ..self.clone() }
    }

    /// Returns the server's streams to debuggers; `None` outside a server.
    pub fn debug_streams(&self) -> Option<&Arc<dyn DebugStreams>> {
        self.debug_streams.as_ref()
    }

    /// Returns the attributes that the cluster knows of the device: name, incarnation, memory limit, description.
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    /// Returns the device's full name, such as `/job:worker/replica:0/task:1/device:GPU:0`.
    pub fn name(&self) -> &DeviceName {
        &self.attributes.name
    }

    /// Returns the store of the device's resources: variables, queues, tables and other objects that outlive a step.
    #[inline]
    pub fn resources(&self) -> &ResourceStore {
        &self.resources
    }

    /// Returns the device's [`Processor`], which allocates the device's memory and copies tensors to it and from it.
    #[inline]
    pub fn processor(&self) -> &dyn Processor {
        &*self.processor
    }

    /// Returns the table of the kernels that compute the device's nodes.
    pub fn kernels(&self) -> &'static KernelTable {
        self.kernels
    }

    /// Returns the kernel for a node, or `None` if the device has none.
    pub fn find_kernel(&self, node: &Node) -> Option<&'static KernelDef> {
        self.kernels.find(node)
    }
}

/// A processor with its memory. It moves tensors between that memory, host memory and the memory of other devices.
pub trait Processor: Any + Send + Sync + fmt::Debug {
    /// Moves a tensor from host memory into the processor's memory. A processor without memory of its own returns the
    /// tensor unchanged.
    fn upload(&self, tensor: Tensor, done: Transfer<Value>);

    /// Moves a tensor of this processor into host memory.
    fn download(&self, tensor: DeviceTensor, done: Transfer<Tensor>);

    /// Returns a tensor that stays valid after its step: a copy if its memory belongs to a graph captured by a
    /// [`SegmentRunner`], else the tensor itself.
    ///
    /// # Errors
    /// `ResourceExhausted`, and errors of the device.
    fn persist(&self, tensor: DeviceTensor) -> Result<DeviceTensor> {
        Ok(tensor)
    }

    /// Returns whether processors of this type [adopt](Processor::adopt) each other's tensors within one process, so
    /// that Send need not copy them to host memory.
    fn can_adopt(&self) -> bool {
        false
    }

    /// Copies a tensor into the processor's memory: from another processor that [adopts](Processor::can_adopt) tensors,
    /// or from a buffer that another process [exports](Processor::export). The result is in host memory if the
    /// processor cannot access the source.
    fn adopt(&self, tensor: DeviceTensor, done: Transfer<Value>) {
        let DeviceTensor { dtype, shape, .. } = tensor;
        let message = format!("{self:?} adopts no tensors, such as {dtype}{shape}");
        done(Err(Error::internal(message)));
    }

    /// Copies a tensor of at least [`MIN_SHARED_BYTES`](crate::peer_buffer::MIN_SHARED_BYTES) bytes into a buffer that
    /// other processes of this machine may map, or into host memory if there is no room for such a buffer.
    fn export(&self, tensor: DeviceTensor, done: Transfer<Value>) {
        self.download(tensor, Box::new(move |tensor| done(tensor.map(Value::from))));
    }

    /// Returns whether the processor can read a buffer that another process [exports](Processor::export) and can
    /// therefore [adopt](Processor::adopt) tensors in it. May block.
    fn can_access(&self, _window: &PeerBuffer) -> bool {
        false
    }

    /// Waits until all work enqueued so far has run. The default implementation does nothing: it is right for
    /// processors whose kernels run to their end on the calling thread.
    ///
    /// # Errors
    /// The error of the device.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// Returns whether the processor's tensors are in memory of its own, so that a value is moved to or from host
    /// memory if a port requires another memory than the value's.
    fn has_own_memory(&self) -> bool {
        false
    }

    /// Returns whether the processor's kernels only enqueue work, so that a [`Processor::segment_runner`] may capture
    /// segments of kernels.
    fn can_capture(&self) -> bool {
        false
    }

    /// Returns the library that reduces tensors in the memory of several processors of this type; `None` if there is
    /// none.
    fn collectives(&self) -> Option<&dyn DeviceCollectives> {
        None
    }

    /// Returns a runner for a segment of kernels. The runner captures the work that the kernels enqueue, and enqueues
    /// it again as one graph.
    ///
    /// # Errors
    /// `Unimplemented` if the processor does not capture segments; the reason if the device cannot be opened.
    fn segment_runner(&self, segment: SegmentInfo) -> Result<Box<dyn SegmentRunner>> {
        Err(Error::unimplemented(format!("{self:?} does not capture the kernels of {}", segment.name)))
    }
}

/// The CPUs of the host. Kernels run to their end on the calling thread, on tensors in host memory.
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

/// A callback that receives the result of a transfer. It is called exactly once.
pub type Transfer<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// A tensor in a device's memory. The memory is freed after the last enqueued work that reads it.
#[derive(Clone, Debug)]
pub struct DeviceTensor {
    pub dtype: DType,
    pub shape: Shape,
    pub memory: Arc<dyn DeviceMemory>,
}

/// A block of a device's memory. Only the device that allocated it knows its concrete type.
pub trait DeviceMemory: Any + Send + Sync + fmt::Debug {
    /// Returns the size in bytes.
    fn len(&self) -> usize;

    /// Returns whether the block has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the buffer, mappable by other processes, at whose start this block is; `None` if they cannot map the
    /// block.
    fn shared_block(&self) -> Option<&dyn SharedBlock> {
        None
    }
}
