//! The [`Driver`] trait: the narrow interface between the code that schedules GPU work and the code that calls
//! CUDA.

use super::arguments::Arguments;
use super::program::Program;
use device::Result;
use device::device_collectives::CommunicatorPlace;
use graph::DType;
use std::any::Any;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

/// An address in a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address(pub u64);

/// The id of a CUDA stream, which is a queue of work that runs in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(pub u64);

/// The id of an event in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(pub u64);

/// The id of a kernel that is loaded into the GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionId(pub u64);

/// The id of an instantiated CUDA graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphId(pub u64);

/// The id of this GPU's side of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommunicatorId(pub u64);

/// The progress of the last call on a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallProgress {
    /// The call goes on in the background.
    Pending,
    /// The call has been carried out.
    Done,
}

/// Host memory that a GPU can read and write directly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinnedMemory {
    pub address: usize,
    /// Size in bytes.
    pub len: usize,
}

/// Device memory with the file descriptor by which another process can map it.
#[derive(Debug)]
pub struct IpcMemory {
    pub address: Address,
    pub descriptor: OwnedFd,
}

/// The launch dimensions of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Number of thread blocks.
    pub blocks: u32,
    /// Number of threads in a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory per block.
    pub shared: u32,
}

/// One GPU, or a test's replacement for a GPU. Calls enqueue work without waiting, unless their documentation
/// says otherwise. The caller, [`Engine`](super::Engine), keeps all memory and events that a call uses alive
/// until the stream has executed the enqueued work.
pub trait Driver: Any + Send + Sync + fmt::Debug {
    /// Returns the free memory and the total memory of the GPU, in bytes.
    fn memory(&self) -> Result<(u64, u64)>;

    /// Creates a CUDA stream of this GPU, in which work runs in order.
    fn create_stream(&self) -> Result<StreamId>;

    /// Creates an event that streams of this GPU can record.
    fn create_event(&self) -> Result<EventId>;

    /// Destroys an event from [`Driver::create_event`].
    fn destroy_event(&self, event: EventId);

    /// Records the event after the work enqueued in the stream so far.
    fn record(&self, event: EventId, stream: StreamId) -> Result<()>;

    /// Makes work that is enqueued in the stream after this call wait for the event.
    fn wait(&self, stream: StreamId, event: EventId) -> Result<()>;

    /// Blocks the calling thread until the event has completed.
    fn wait_on_host(&self, event: EventId) -> Result<()>;

    /// Blocks the calling thread until all enqueued work has completed.
    fn synchronize(&self) -> Result<()>;

    /// Allocates memory in the order of the stream, at a multiple of 256 bytes; returns `None` if there is not
    /// enough.
    fn allocate(&self, bytes: usize, stream: StreamId) -> Result<Option<Address>>;

    /// Frees memory after the work enqueued in the stream so far.
    fn free(&self, address: Address, stream: StreamId);

    /// Returns the pool's unused memory to the system.
    fn trim(&self) -> Result<()>;

    /// Allocates `bytes`, a power of two, of memory that other processes of the machine can map; returns `None`
    /// if there is not enough. May block.
    ///
    /// # Errors
    /// `Unimplemented` if the GPU cannot share memory by file descriptor, or if `bytes` is not a multiple of the
    /// granularity in which the GPU shares memory.
    fn share(&self, bytes: usize) -> Result<Option<IpcMemory>>;

    /// Maps memory of at least `bytes` bytes that another process shares, and returns its address. May block.
    fn map(&self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<Address>;

    /// Unmaps memory from [`Driver::share`] or [`Driver::map`], which no stream uses. The memory stays
    /// allocated while other processes map it.
    fn unmap(&self, address: Address, bytes: usize);

    /// Allocates `bytes` bytes of host memory that the GPU can read and write directly.
    fn allocate_pinned(&self, bytes: usize) -> Result<PinnedMemory>;

    /// Frees memory from [`Driver::allocate_pinned`].
    fn free_pinned(&self, memory: PinnedMemory);

    /// Pins existing host memory, which must consist of whole pages.
    fn pin(&self, memory: PinnedMemory) -> Result<()>;

    /// Unpins memory from [`Driver::pin`].
    fn unpin(&self, memory: PinnedMemory);

    /// Enqueues a copy from the host to the GPU.
    fn copy_in(&self, to: Address, from: PinnedMemory, bytes: usize, stream: StreamId) -> Result<()>;

    /// Enqueues a copy from the GPU to the host.
    fn copy_out(&self, to: PinnedMemory, from: Address, bytes: usize, stream: StreamId) -> Result<()>;

    /// Enqueues a copy within the GPU's memory.
    fn copy(&self, to: Address, from: Address, bytes: usize, stream: StreamId) -> Result<()>;

    /// Enables peer access between this GPU and another, and returns whether the two support it.
    fn enable_peer_access(&self, peer: &dyn Driver) -> Result<bool>;

    /// Enqueues a copy from this GPU's memory to the memory of `peer`, to which this GPU has peer access; the
    /// stream belongs to this GPU.
    fn copy_to_peer(
        &self,
        peer: &dyn Driver,
        to: Address,
        from: Address,
        bytes: usize,
        stream: StreamId,
    ) -> Result<()>;

    /// Enqueues an all-reduce over several distinct GPUs, one part on each. This GPU must be among them.
    /// Collectives must be enqueued in the same order on all GPUs, because each part waits for the parts on the
    /// other GPUs.
    fn all_reduce(&self, operation: &AllReduce, parts: &[AllReducePart<'_>]) -> Result<()>;

    /// Returns a name of this GPU that no other GPU of any machine has.
    ///
    /// # Errors
    /// `Unavailable` with the reason why the GPU cannot be in a communicator.
    fn communicator_identity(&self) -> Result<String>;

    /// Creates the key of a new communicator. May block.
    fn create_communicator_key(&self) -> Result<Vec<u8>>;

    /// Begins to create this GPU's side of a communicator, without waiting for the other members;
    /// [`Driver::communicator_progress`] tells when all have connected.
    fn connect_communicator(&self, place: &CommunicatorPlace) -> Result<CommunicatorId>;

    /// Returns whether the last call on the communicator, its creation or a collective, has been carried out: a
    /// collective is enqueued then. Never blocks.
    ///
    /// # Errors
    /// `Aborted` or `Internal` if the communicator has failed.
    fn communicator_progress(&self, communicator: CommunicatorId) -> Result<CallProgress>;

    /// Begins to enqueue this GPU's part of an all-reduce of the communicator's members;
    /// [`Driver::communicator_progress`] tells when it is enqueued.
    fn all_reduce_of_members(
        &self,
        communicator: CommunicatorId,
        operation: &AllReduce,
        from: Address,
        to: Address,
        stream: StreamId,
    ) -> Result<()>;

    /// Aborts a communicator: enqueued collectives end, with arbitrary results. No call with the communicator is made
    /// at the same time or later. May block until the GPU has stopped the collectives.
    fn abort_communicator(&self, communicator: CommunicatorId);

    /// Enqueues work that sets `bytes` bytes of memory to `byte`.
    fn fill(&self, to: Address, byte: u8, bytes: usize, stream: StreamId) -> Result<()>;

    /// Compiles a kernel and loads it into the GPU's memory. Blocks until the kernel is loaded.
    fn load(&self, program: &Program) -> Result<FunctionId>;

    /// Enqueues a kernel.
    fn launch(&self, function: FunctionId, grid: Grid, arguments: &Arguments, stream: StreamId)
    -> Result<()>;

    /// Enqueues a matrix product. Like [`Driver::convolve`] it may block while it times the available
    /// algorithms.
    ///
    /// # Errors
    /// `Unimplemented`, without enqueueing anything, for an epilogue that no available library supports for
    /// this product.
    fn product(&self, product: &Product, stream: StreamId) -> Result<()>;

    /// Returns the sizes of the workspace that the convolution needs in this stream; `None` if the library does
    /// not support the convolution.
    fn convolution_workspace(
        &self,
        convolution: &Convolution,
        stream: StreamId,
    ) -> Result<Option<WorkspaceBytes>>;

    /// Enqueues a convolution, with a workspace of at least the minimum size.
    fn convolve(&self, convolution: &Convolution, at: &ConvolutionMemory, stream: StreamId) -> Result<()>;

    /// Starts capturing the stream: work that is enqueued is recorded and not run. Only kernels, copies and
    /// fills may be captured, no events, waits or allocations. Other streams and threads are unaffected.
    fn begin_capture(&self, stream: StreamId) -> Result<()>;

    /// Ends the capture and returns its graph, if all work could be captured. After the call the stream runs
    /// enqueued work again, also if the capture has failed.
    fn end_capture(&self, stream: StreamId) -> Result<GraphId>;

    /// Enqueues a captured graph; its kernels get the addresses and scalar arguments that they were captured
    /// with.
    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> Result<()>;

    /// Destroys a graph; launches that are already enqueued still run.
    fn destroy_graph(&self, graph: GraphId);
}

/// The operation by which a collective combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    Sum,
    Product,
    Minimum,
    Maximum,
    /// The sum divided by the number of participants.
    Mean,
}

/// A collective that combines tensors of several GPUs element by element; each GPU gets the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllReduce {
    pub reduction: Reduction,
    pub dtype: DType,
    /// Number of elements of each GPU's tensor, greater than 0.
    pub count: usize,
}

/// One GPU's share of a collective: its input, the memory for its result, and the CUDA stream.
#[derive(Clone, Copy, Debug)]
pub struct AllReducePart<'a> {
    pub driver: &'a dyn Driver,
    pub from: Address,
    pub to: Address,
    pub stream: StreamId,
}

/// A batch of `count` matrix products `c = a b`; all matrices are row-major, and a factor may be stored
/// transposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    pub dtype: DType,
    /// Rows of `a` and `c`.
    pub m: usize,
    /// Columns of `b` and `c`.
    pub n: usize,
    /// Columns of `a` and rows of `b`.
    pub k: usize,
    /// For `a` and for `b`: true if the factor is stored transposed.
    pub flips: [bool; 2],
    /// True if complex factors that are stored transposed are also conjugated.
    pub conjugates: bool,
    pub a: Address,
    pub b: Address,
    pub c: Address,
    /// Number of products in the batch.
    pub count: usize,
    /// Distance in elements between consecutive matrices of the batch, for `a`, `b` and `c`; 0 uses one matrix
    /// for the whole batch.
    pub steps: [usize; 3],
    /// True if float32 factors may be rounded to TF32.
    pub tf32: bool,
    /// Operations applied to the product's elements before they are written.
    pub epilogue: Option<Epilogue>,
}

/// The operations that a library applies to a product's elements before they are rounded and written: first the
/// bias, then `relu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epilogue {
    /// A vector of `n` elements of the product's dtype, added to each row.
    pub bias: Option<Address>,
    /// True if negative elements become 0.
    pub relu: bool,
}

/// The tensor that a convolution op computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The convolution's output, from the input and the filter.
    Forward,
    /// The gradient with respect to the input, from the filter and the output's gradient.
    Input,
    /// The gradient with respect to the filter, from the input and the output's gradient.
    Filter,
}

/// A two-dimensional convolution. Tensors have the shape `[batch, channels, height, width]` and filters `[out,
/// in, height, width]`; if the input's channels are innermost in memory, so are the filter's `in` channels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    pub direction: Direction,
    pub dtype: DType,
    pub input: Image,
    pub filter: [usize; 4],
    pub output: Image,
    /// Padding before the first row and before the first column.
    pub padding: [usize; 2],
    /// Strides of the window along rows and along columns.
    pub strides: [usize; 2],
    /// Dilation of the filter along rows and along columns.
    pub dilations: [usize; 2],
    /// Number of groups into which the channels are divided.
    pub groups: usize,
    /// True if float32 factors may be rounded to TF32.
    pub tf32: bool,
}

/// The shape and memory order of a batch of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Image {
    /// Sizes of the batch, channels, height and width.
    pub sizes: [usize; 4],
    /// True if channels are innermost.
    pub channels_last: bool,
}

/// The sizes in bytes of a library call's workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkspaceBytes {
    /// Size with which the fastest algorithm can run; the fastest is found by timing, or else predicted by the
    /// library.
    pub preferred: usize,
    /// Size below which no algorithm can run.
    pub minimum: usize,
}

/// The addresses of a convolution's tensors and workspace. The convolution reads two of the tensors and writes
/// the third, which its [`Direction`] selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionMemory {
    pub input: Address,
    pub filter: Address,
    pub output: Address,
    /// Address and size in bytes of the workspace.
    pub workspace: Option<(Address, usize)>,
}
