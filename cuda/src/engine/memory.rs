//! A block of a GPU's memory, and the order in which streams may use it.

use super::arena::Arena;
use super::driver::Address;
use super::gpu_engine::Engine;
use super::ipc_buffers::IpcBuffer;
use super::streams::{Mark, Stream};
use device::DeviceMemory;
use device::Result;
use device::shared_block::SharedBlock;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The memory of one tensor, or of several tensors that share it. When the last tensor is dropped, the memory
/// is freed in stream order, after all work that still reads it.
#[derive(Debug)]
pub struct Block {
    engine: Arc<Engine>,
    /// The identity of the block; unlike an address, it is never reused.
    id: BlockId,
    owner: Owner,
    address: Address,
    len: usize,
    order: Mutex<Order>,
}

/// The owner of a block's memory, to which the memory is returned when the block is dropped.
#[derive(Debug)]
enum Owner {
    /// The GPU's memory pool.
    Pool,
    /// The arena of a captured graph.
    Arena(Arc<Arena>),
    /// An IPC buffer, which other processes may map.
    IpcBuffer(IpcBuffer),
    /// The original block at the same address, which outlives this block; captured kernels use this block in
    /// its place.
    Other,
}

/// The identity of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BlockId(u64);

impl BlockId {
    /// Returns an id that no other block has.
    fn fresh() -> BlockId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        BlockId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The events that order the streams which use a block.
#[derive(Debug)]
struct Order {
    /// The CUDA stream that wrote the block last, or for which the block was allocated.
    writer: Stream,
    /// The event at the end of the copy that fills the block; `None` once the compute stream waits for that
    /// event.
    filled: Option<Arc<Mark>>,
    /// The events at the ends of the copies that read the block.
    readers: SmallVec<[Arc<Mark>; 1]>,
}

impl Block {
    /// Returns a block of the GPU's memory pool that kernels will write.
    pub(super) fn new(engine: Arc<Engine>, address: Address, len: usize) -> Block {
        let order = Order { writer: Stream::Compute, filled: None, readers: SmallVec::new() };
        Block { engine, id: BlockId::fresh(), owner: Owner::Pool, address, len, order: Mutex::new(order) }
    }

    /// Like [`Block::new`], in memory of a captured graph.
    pub(super) fn in_arena(engine: Arc<Engine>, arena: Arc<Arena>, address: Address, len: usize) -> Block {
        let mut block = Block::new(engine, address, len);
        block.owner = Owner::Arena(arena);
        block
    }

    /// Returns a second block for the same memory, with a reference count of its own, for the kernels of a
    /// capture. Work enqueued after this call runs after the work that wrote the memory.
    ///
    /// # Errors
    /// The errors of the driver.
    pub(super) fn alias(&self) -> Result<Block> {
        let mut block = Block::new(self.engine.clone(), self.read()?, self.len);
        block.owner = Owner::Other;
        Ok(block)
    }

    /// Returns a block allocated in the order of `stream`, filled by a copy that ends at `mark`, which may be
    /// in another GPU's stream.
    pub(super) fn filled(
        engine: Arc<Engine>,
        address: Address,
        len: usize,
        stream: Stream,
        mark: Arc<Mark>,
    ) -> Block {
        let order = Order { writer: stream, filled: Some(mark), readers: SmallVec::new() };
        Block { engine, id: BlockId::fresh(), owner: Owner::Pool, address, len, order: Mutex::new(order) }
    }

    /// Like [`Block::filled`], in an IPC buffer.
    pub(super) fn in_ipc_buffer(
        engine: Arc<Engine>,
        buffer: IpcBuffer,
        address: Address,
        len: usize,
        mark: Arc<Mark>,
    ) -> Block {
        let mut block = Block::filled(engine, address, len, Stream::Peer, mark);
        block.owner = Owner::IpcBuffer(buffer);
        block
    }

    /// Returns the GPU to which the memory belongs.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(super) fn id(&self) -> BlockId {
        self.id
    }

    /// Returns whether the memory belongs to a captured graph, which overwrites it on each launch.
    pub(super) fn is_graph_memory(&self) -> bool {
        matches!(self.owner, Owner::Arena(_))
    }

    /// Returns the address for a kernel that reads the block and is enqueued next.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn read(&self) -> Result<Address> {
        self.order.lock().wait_for_fill(&self.engine)?;
        Ok(self.address)
    }

    /// Returns the address for a kernel that changes the block and is enqueued next; the kernel waits for
    /// copies that read the block.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn write(&self) -> Result<Address> {
        let mut order = self.order.lock();
        order.wait_for_fill(&self.engine)?;
        for reader in order.readers.drain(..) {
            self.engine.streams().wait(Stream::Compute, &reader)?;
        }
        Ok(self.address)
    }

    /// Enqueues a copy that reads the block, and returns the event at its end.
    ///
    /// # Errors
    /// The errors of the driver and of `copy`.
    pub(super) fn record_copy(
        &self,
        stream: Stream,
        copy: impl FnOnce(Address) -> Result<()>,
    ) -> Result<Arc<Mark>> {
        let mut order = self.order.lock();
        order.wait_for_writer(&self.engine, stream)?;
        copy(self.address)?;
        let mark = self.engine.streams().mark(stream)?;
        order.readers.push(mark.clone());
        Ok(mark)
    }

    /// Returns the address for the next work in `stream`, which reads the block. The caller keeps its reference
    /// to the block until it has passed the event at the end of that work to [`add_reader`](Block::add_reader),
    /// because a block with several references is not changed in place.
    ///
    /// # Errors
    /// The errors of the driver.
    pub(super) fn read_on(&self, stream: Stream) -> Result<Address> {
        self.order.lock().wait_for_writer(&self.engine, stream)?;
        Ok(self.address)
    }

    /// Records the event at which work that reads the block ends.
    pub(super) fn add_reader(&self, mark: Arc<Mark>) {
        self.order.lock().readers.push(mark);
    }
}

impl Order {
    /// Orders work enqueued next in `stream` after the work that wrote the block.
    fn wait_for_writer(&self, engine: &Engine, stream: Stream) -> Result<()> {
        let streams = engine.streams();
        match &self.filled {
            Some(mark) => streams.wait(stream, mark),
            None => streams.wait(stream, &*streams.mark(self.writer)?),
        }
    }

    /// Orders kernels that are enqueued next after the copy that filled the block.
    fn wait_for_fill(&mut self, engine: &Engine) -> Result<()> {
        if let Some(mark) = self.filled.take() {
            engine.streams().wait(Stream::Compute, &mark)?;
            self.writer = Stream::Compute;
        }
        Ok(())
    }
}

impl DeviceMemory for Block {
    fn len(&self) -> usize {
        self.len
    }

    fn shared_block(&self) -> Option<&dyn SharedBlock> {
        match &self.owner {
            Owner::IpcBuffer(buffer) => Some(buffer),
            _ => None,
        }
    }
}

impl Drop for Block {
    /// Frees the memory in the CUDA stream that used the block last, after the other streams' work on the
    /// block, so that kernels never wait for a copy to the host.
    fn drop(&mut self) {
        let order = self.order.get_mut();
        let streams = self.engine.streams();
        match std::mem::replace(&mut self.owner, Owner::Other) {
            Owner::Pool => {}
            Owner::IpcBuffer(buffer) => {
                // Copies out of the IPC buffer within this process, for receivers over gRPC, must end before
                // the buffer is reused.
                order.readers.iter().for_each(|mark| drop(mark.wait_on_host()));
                return self.engine.pool().recycle(buffer);
            }
            Owner::Arena(arena) => {
                for mark in &order.readers {
                    let _ = streams.wait(Stream::Compute, mark);
                }
                return arena.recycle(self.address);
            }
            Owner::Other => return,
        }
        let last = order.readers.last().map_or(order.writer, |mark| mark.stream);
        // Errors are ignored: if the driver cannot order streams, an earlier call has already failed and
        // returned the error.
        for mark in &order.readers {
            let _ = streams.wait(last, mark);
        }
        let _ = match &order.filled {
            Some(mark) => streams.wait(last, mark),
            None if last != order.writer => {
                streams.mark(order.writer).and_then(|mark| streams.wait(last, &mark))
            }
            None => Ok(()),
        };
        self.engine.pool().free(self.address, streams.id(last));
    }
}
