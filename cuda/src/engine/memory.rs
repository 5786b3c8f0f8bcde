//! A block of a GPU's memory, and in what order streams may use it.

use super::arena::Arena;
use super::driver::Address;
use super::engine::Engine;
use super::streams::{Mark, Stream};
use super::windows::Window;
use device::DeviceMemory;
use device::Result;
use device::shared_block::SharedBlock;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that one tensor, or several that share it, lie in. When the last of them is dropped it is free for what the
/// streams are given after that, never for what still reads it.
#[derive(Debug)]
pub struct Block {
    engine: Arc<Engine>,
    /// No other block has it, not even one that gets the same address later.
    id: BlockId,
    owner: Owner,
    address: Address,
    len: usize,
    order: Mutex<Order>,
}

/// Whose memory a block is: who gets it back.
#[derive(Debug)]
enum Owner {
    /// The GPU's.
    Pool,
    /// A captured graph's.
    Arena(Arc<Arena>),
    /// A window's, through which other processes see it.
    Window(Window),
    /// Another block's, for as long as a graph is captured.
    Other,
}

/// A block's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BlockId(u64);

impl BlockId {
    fn fresh() -> BlockId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        BlockId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct Order {
    /// The stream that has written it last, or for which it was taken.
    writer: Stream,
    /// Where the copy that filled it ends, until the kernels have waited for that.
    filled: Option<Arc<Mark>>,
    /// Where the copies that read it end.
    readers: SmallVec<[Arc<Mark>; 1]>,
}

impl Block {
    /// Memory that kernels will write.
    pub(super) fn new(engine: Arc<Engine>, address: Address, len: usize) -> Block {
        let order = Order { writer: Stream::Compute, filled: None, readers: SmallVec::new() };
        Block { engine, id: BlockId::fresh(), owner: Owner::Pool, address, len, order: Mutex::new(order) }
    }

    /// As [`Block::new`], of memory that is a captured graph's.
    pub(super) fn of_arena(engine: Arc<Engine>, arena: Arc<Arena>, address: Address, len: usize) -> Block {
        let mut block = Block::new(engine, address, len);
        block.owner = Owner::Arena(arena);
        block
    }

    /// The same memory, for kernels that are captured: who holds this block does not hold that one. What wrote it comes
    /// before what is enqueued from now on.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn stand_in(&self) -> Result<Block> {
        let mut block = Block::new(self.engine.clone(), self.read()?, self.len);
        block.owner = Owner::Other;
        Ok(block)
    }

    /// Memory taken for what `stream` is given, which a copy fills, up to this mark: it may be in another GPU's stream.
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

    /// As [`Block::filled`], of memory that other processes see.
    pub(super) fn in_window(
        engine: Arc<Engine>,
        window: Window,
        address: Address,
        len: usize,
        mark: Arc<Mark>,
    ) -> Block {
        let mut block = Block::filled(engine, address, len, Stream::Peer, mark);
        block.owner = Owner::Window(window);
        block
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(super) fn id(&self) -> BlockId {
        self.id
    }

    /// Whether it is a captured graph's, which gives a tensor in it whenever it runs.
    pub(super) fn is_of_graph(&self) -> bool {
        matches!(self.owner, Owner::Arena(_))
    }

    /// Where it is, for a kernel that reads it and is enqueued next.
    ///
    /// # Errors
    /// The driver's.
    pub fn read(&self) -> Result<Address> {
        self.order.lock().join(&self.engine)?;
        Ok(self.address)
    }

    /// Where it is, for a kernel that changes it and is enqueued next.
    ///
    /// # Errors
    /// The driver's.
    pub fn write(&self) -> Result<Address> {
        let mut order = self.order.lock();
        order.join(&self.engine)?;
        for reader in order.readers.drain(..) {
            self.engine.streams().wait(Stream::Compute, &reader)?;
        }
        Ok(self.address)
    }

    /// Enqueues a copy that reads it.
    ///
    /// # Errors
    /// The driver's, and those of `copy`.
    pub(super) fn copied_by(
        &self,
        stream: Stream,
        copy: impl FnOnce(Address) -> Result<()>,
    ) -> Result<Arc<Mark>> {
        let mut order = self.order.lock();
        order.precede(&self.engine, stream)?;
        copy(self.address)?;
        let mark = self.engine.streams().mark(stream)?;
        order.readers.push(mark.clone());
        Ok(mark)
    }

    /// Where it is, for what `stream` is given next and reads it. Nobody may change it before it is known where that
    /// [ends](Block::read_until): whoever reads holds it, and what others hold is not changed in place.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn read_on(&self, stream: Stream) -> Result<Address> {
        self.order.lock().precede(&self.engine, stream)?;
        Ok(self.address)
    }

    /// What was enqueued to read it ends at the mark.
    pub(super) fn read_until(&self, mark: Arc<Mark>) {
        self.order.lock().readers.push(mark);
    }
}

impl Order {
    /// What `stream` is given from now on comes after what wrote the block.
    fn precede(&self, engine: &Engine, stream: Stream) -> Result<()> {
        let streams = engine.streams();
        match &self.filled {
            Some(mark) => streams.wait(stream, mark),
            None => streams.wait(stream, &*streams.mark(self.writer)?),
        }
    }

    /// Kernels that are enqueued from now on come after the copy that filled the block.
    fn join(&mut self, engine: &Engine) -> Result<()> {
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
            Owner::Window(window) => Some(window),
            _ => None,
        }
    }
}

impl Drop for Block {
    /// The stream that has it last frees it, behind the others: kernels never wait for a copy out.
    fn drop(&mut self) {
        let order = self.order.get_mut();
        let streams = self.engine.streams();
        match std::mem::replace(&mut self.owner, Owner::Other) {
            Owner::Pool => {}
            Owner::Window(window) => {
                // What reads it here, where a receiver asked for it over gRPC, holds it until it has ended.
                order.readers.iter().for_each(|mark| drop(mark.wait_here()));
                return self.engine.pool().give_back(window);
            }
            Owner::Arena(arena) => {
                for mark in &order.readers {
                    let _ = streams.wait(Stream::Compute, mark);
                }
                return arena.take_back(self.address);
            }
            Owner::Other => return,
        }
        let last = order.readers.last().map_or(order.writer, |mark| mark.stream);
        // A driver that refuses to order streams has failed before, and has told whoever asked.
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
