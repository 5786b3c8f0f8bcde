//! What is asked of a GPU: the narrow waist between what decides and what drives.

use super::arguments::Arguments;
use super::program::Program;
use device::Result;
use graph::DType;
use std::any::Any;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Where something lies in a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address(pub u64);

/// A queue of work that runs in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(pub u64);

/// A mark in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId(pub u64);

/// A kernel in the GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionId(pub u64);

/// Work that was captured, ready to be enqueued at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphId(pub u64);

/// Memory of the host that a GPU reads and writes by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    pub address: usize,
    /// Bytes.
    pub len: usize,
}

/// Memory of a GPU, and what another process finds it by.
#[derive(Debug)]
pub struct Shared {
    pub address: Address,
    pub descriptor: OwnedFd,
}

/// How many blocks of how many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub blocks: u32,
    pub threads: u32,
    /// Bytes of shared memory a block.
    pub shared: u32,
}

/// One GPU, or what a test puts in its place. Calls only enqueue, but where they say that they wait. Whoever calls keeps
/// what a call names alive until the stream has passed it: [`Engine`](super::Engine) sees to that.
pub trait Driver: Any + Send + Sync + fmt::Debug {
    /// Bytes of memory: free, and in all.
    fn memory(&self) -> Result<(u64, u64)>;

    fn create_stream(&self) -> Result<StreamId>;

    fn create_event(&self) -> Result<EventId>;

    fn destroy_event(&self, event: EventId);

    /// Marks what the stream has been given so far.
    fn record(&self, event: EventId, stream: StreamId) -> Result<()>;

    /// What the stream is given from now on waits for the mark.
    fn wait(&self, stream: StreamId, event: EventId) -> Result<()>;

    /// Waits, on this thread, until the mark is reached.
    fn wait_here(&self, event: EventId) -> Result<()>;

    /// Waits, on this thread, for all that was enqueued.
    fn synchronize(&self) -> Result<()>;

    /// Memory for what the stream is given from now on, from a multiple of 256 bytes on; `None` if there is not enough.
    fn allocate(&self, bytes: usize, stream: StreamId) -> Result<Option<Address>>;

    /// Takes memory back once the stream has passed what it was given so far.
    fn free(&self, address: Address, stream: StreamId);

    /// Gives back what is kept for reuse.
    fn trim(&self) -> Result<()>;

    /// Memory that other processes of the machine can use too, of a power of two of bytes; `None` if there is not enough. May
    /// wait.
    ///
    /// # Errors
    /// `Unimplemented` if the GPU shares none in such pieces.
    fn share(&self, bytes: usize) -> Result<Option<Shared>>;

    /// Lets this GPU use memory that another process shares, of at least so many bytes. May wait.
    fn map(&self, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<Address>;

    /// Gives up what [`Driver::share`] or [`Driver::map`] gave, which no stream uses any more. It stays for who else has it.
    fn unmap(&self, address: Address, bytes: usize);

    fn allocate_pinned(&self, bytes: usize) -> Result<Pinned>;

    fn free_pinned(&self, memory: Pinned);

    /// Lets GPUs read and write memory of the host that is there already, of whole pages.
    fn pin(&self, memory: Pinned) -> Result<()>;

    fn unpin(&self, memory: Pinned);

    fn copy_in(&self, to: Address, from: Pinned, bytes: usize, stream: StreamId) -> Result<()>;

    fn copy_out(&self, to: Pinned, from: Address, bytes: usize, stream: StreamId) -> Result<()>;

    fn copy(&self, to: Address, from: Address, bytes: usize, stream: StreamId) -> Result<()>;

    /// Whether this GPU and another may use each other's memory. From now on they do.
    fn reach(&self, peer: &dyn Driver) -> Result<bool>;

    /// Copies into the memory of a GPU that is within reach; the stream is this one's.
    fn copy_to(
        &self,
        peer: &dyn Driver,
        to: Address,
        from: Address,
        bytes: usize,
        stream: StreamId,
    ) -> Result<()>;

    /// Enqueues a part on each of several GPUs, of which this is one, none of them twice. Whatever is enqueued on one of
    /// them for others to take part in is enqueued on all in the same order.
    fn all_reduce(&self, what: &AllReduce, parts: &[Part<'_>]) -> Result<()>;

    fn fill(&self, to: Address, byte: u8, bytes: usize, stream: StreamId) -> Result<()>;

    /// Compiles a kernel and loads it: waits.
    fn load(&self, program: &Program) -> Result<FunctionId>;

    fn launch(&self, function: FunctionId, grid: Grid, arguments: &Arguments, stream: StreamId)
    -> Result<()>;

    /// May wait, to find the fastest way to do it, as [`Driver::convolve`] may.
    ///
    /// # Errors
    /// `Unimplemented`, and nothing is enqueued, for an epilogue that no library at hand has for this product.
    fn product(&self, product: &Product, stream: StreamId) -> Result<()>;

    /// Memory that the convolution, enqueued to the stream, needs beside its tensors; `None` if the library cannot compute it.
    fn convolution_workspace(
        &self,
        convolution: &Convolution,
        stream: StreamId,
    ) -> Result<Option<WorkspaceBytes>>;

    /// With a workspace of as many bytes as are needed at least.
    fn convolve(&self, convolution: &Convolution, at: &ConvolutionAt, stream: StreamId) -> Result<()>;

    /// What the stream is given from now on is written down, not run. That must be work on memory alone: marks, waits and
    /// memory are no part of it. Other streams, and other threads, go on as ever.
    fn begin_capture(&self, stream: StreamId) -> Result<()>;

    /// What was written down since, if all of it could be; in either case the stream runs what it is given again.
    fn end_capture(&self, stream: StreamId) -> Result<GraphId>;

    /// Enqueues what was captured, with the same addresses and numbers as then.
    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> Result<()>;

    /// Streams may still have to run it.
    fn destroy_graph(&self, graph: GraphId);
}

/// How several numbers become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    Sum,
    Product,
    Minimum,
    Maximum,
}

/// Tensors of several GPUs become one, element by element, which each of them gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllReduce {
    pub reduction: Reduction,
    pub dtype: DType,
    /// Elements of a tensor, more than none.
    pub count: usize,
}

/// What one GPU gives to a collective, and where it gets the result; the stream is the GPU's.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub driver: &'a dyn Driver,
    pub from: Address,
    pub to: Address,
    pub stream: StreamId,
}

/// `c = a b` for each of `count` pairs of row-major matrices; a flipped factor is stored transposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    pub dtype: DType,
    /// Rows of `a`, columns of `b`, and what both share.
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub flips: [bool; 2],
    /// Whether flipped factors, of complex numbers, are conjugated too.
    pub conjugates: bool,
    pub a: Address,
    pub b: Address,
    pub c: Address,
    pub count: usize,
    /// Elements from one matrix to the next: 0 repeats.
    pub steps: [usize; 3],
    /// Whether float32 factors may be rounded to TF32.
    pub tf32: bool,
    pub epilogue: Option<Epilogue>,
}

/// What becomes of a product's elements before they are rounded and written, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epilogue {
    /// A vector of `n` elements of the product's type, which is added to each row.
    pub bias: Option<Address>,
    /// Whether what is below 0 becomes 0.
    pub relu: bool,
}

/// Which of its three tensors a convolution computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    Forward,
    /// The gradient by its input.
    Input,
    /// The gradient by its filter.
    Filter,
}

/// A two-dimensional convolution. Tensors are of `[batch, channels, height, width]`, lying as `strides` say; filters
/// are `[out, in, height, width]`, lying as the input's channels do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    pub direction: Direction,
    pub dtype: DType,
    pub input: Image,
    pub filter: [usize; 4],
    pub output: Image,
    /// Before the first row, and the first column.
    pub padding: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    pub groups: usize,
    pub tf32: bool,
}

/// How a batch of images lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Image {
    /// Batch, channels, height, width.
    pub sizes: [usize; 4],
    /// Whether channels are innermost.
    pub channels_last: bool,
}

/// Memory that work is done in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkspaceBytes {
    /// With as much, the fastest way to do it is found, or the one that is expected to be it.
    pub wanted: usize,
    /// With less, there is no way.
    pub needed: usize,
}

/// Where a convolution's tensors are: the one of its direction is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionAt {
    pub input: Address,
    pub filter: Address,
    pub output: Address,
    pub workspace: Option<(Address, usize)>,
}
