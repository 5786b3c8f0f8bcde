//! A GPU in use: its streams, its memory, its kernels. What is asked of it is enqueued, and in the right order.

use super::driver::{Address, Driver, Pinned, StreamId};
use super::memory::Block;
use super::pinned::{PinnedBuffer, PinnedPool};
use super::pool::Pool;
use super::program::{Function, Program, Programs};
use super::road::Road;
use super::streams::{Mark, Stream, Streams};
use super::waiter::Waiter;
use device::gpu_options::GpuOptions;
use device::window::BorrowedMemory;
use device::{DeviceTensor, Transfer};
use device::{Error, Result};
use graph::tensor::Buffer;
use graph::{DType, Shape, Tensor};
use parking_lot::{Mutex, MutexGuard};
use rayon::prelude::*;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

/// One GPU, opened.
#[derive(Debug)]
pub struct Engine {
    driver: Arc<dyn Driver>,
    streams: Streams,
    pool: Pool,
    pinned: Arc<PinnedPool>,
    programs: Programs,
    incoming: Waiter,
    outgoing: Waiter,
    between: Waiter,
    taking: Waiter,
    tf32: bool,
    poison: bool,
    capture_stream: Option<Mutex<StreamId>>,
}

impl Engine {
    /// # Errors
    /// The driver's; `ResourceExhausted` if the options ask for all memory at once and it is not there.
    pub fn open(driver: Arc<dyn Driver>, device: String, options: &GpuOptions) -> Result<Engine> {
        let limit = options.limit(driver.memory()?.1)?;
        let streams = Streams::new(driver.clone())?;
        let mut pool = Pool::new(driver.clone(), device, limit);
        if !options.allow_growth {
            pool.reserve(streams.id(Stream::Compute))?;
        }
        let capture_stream = match options.graphs {
            true => Some(Mutex::new(driver.create_stream()?)),
            false => None,
        };
        Ok(Engine {
            capture_stream,
            pinned: PinnedPool::new(driver.clone()),
            programs: Programs::default(),
            incoming: Waiter::new("anabranch-gpu-in")?,
            outgoing: Waiter::new("anabranch-gpu-out")?,
            between: Waiter::new("anabranch-gpu-between")?,
            taking: Waiter::new("anabranch-gpu-take")?,
            tf32: options.tf32,
            poison: options.poison,
            driver,
            streams,
            pool,
        })
    }

    pub(super) fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Who waits until copies from the host, and from other processes, have ended.
    pub(super) fn incoming(&self) -> &Waiter {
        &self.incoming
    }

    /// Who waits for what is lent to other processes, and gives up what they lent; it takes no memory.
    pub(super) fn between(&self) -> &Waiter {
        &self.between
    }

    /// Who takes in what other processes lend.
    pub(super) fn taking(&self) -> &Waiter {
        &self.taking
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Bytes of its memory in use.
    pub fn used(&self) -> u64 {
        self.pool.used()
    }

    /// Whether float32 factors may be rounded to TF32.
    pub fn tf32(&self) -> bool {
        self.tf32
    }

    /// Memory of the GPU for a tensor that kernels will write.
    ///
    /// # Errors
    /// `ResourceExhausted` with the tensor, the node that wants it and the nodes that hold most;
    /// `Unimplemented` for elements that are objects.
    pub(super) fn allocate(
        self: &Arc<Engine>,
        node: &Arc<str>,
        dtype: DType,
        shape: Shape,
    ) -> Result<DeviceTensor> {
        let len = bytes_of(dtype, &shape)?;
        let what = || format!("tensor with shape{shape} and type {dtype} for {node}");
        let address = match len {
            0 => Address(0),
            len => self.pool.allocate(len, self.streams.id(Stream::Compute), node, what)?,
        };
        let memory = Arc::new(Block::new(self.clone(), address, len));
        Ok(DeviceTensor { dtype, shape, memory })
    }

    /// The kernel of a program, compiled when it is first asked for.
    ///
    /// # Errors
    /// `Internal` with what the compiler says.
    pub fn function(&self, program: Program) -> Result<Arc<Function>> {
        self.programs.function(program, |program| self.driver.load(program))
    }

    pub(super) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Whether kernels get memory filled with [`POISON`](device::gpu_options::POISON).
    pub(super) fn poisons(&self) -> bool {
        self.poison
    }

    /// The stream whose work is captured, for one segment at a time; `None` if none is to be.
    pub(super) fn capture_stream(&self) -> Option<MutexGuard<'_, StreamId>> {
        self.capture_stream.as_ref().map(Mutex::lock)
    }

    /// A tensor of host memory in the GPU's; the copy is enqueued, and who uses the tensor comes after it.
    ///
    /// # Errors
    /// `ResourceExhausted`, and the driver's.
    pub fn upload(self: &Arc<Engine>, node: &Arc<str>, tensor: &Tensor) -> Result<DeviceTensor> {
        let (dtype, shape, bytes) = (tensor.dtype(), tensor.shape().clone(), tensor.bytes()?);
        if bytes.is_empty() {
            return self.allocate(node, dtype, shape);
        }
        self.filled(node, (dtype, shape), bytes.len(), |to| match PinnedBuffer::holds(tensor) {
            true => self.copy_in_place(to, tensor, bytes),
            false => self.copy_in(to, bytes),
        })
    }

    /// Memory for a tensor of this form that `copy` fills, up to the mark that it gives, which may be in another GPU's stream.
    ///
    /// # Errors
    /// `ResourceExhausted`, and those of `copy`.
    pub(super) fn filled(
        self: &Arc<Engine>,
        node: &Arc<str>,
        (dtype, shape): (DType, Shape),
        len: usize,
        copy: impl FnOnce(Address) -> Result<Arc<Mark>>,
    ) -> Result<DeviceTensor> {
        let stream = self.streams.id(Stream::In);
        let what = || format!("tensor with shape{shape} and type {dtype} for {node}");
        let address = self.pool.allocate(len, stream, node, what)?;
        match copy(address) {
            Ok(mark) => {
                let block = Block::filled(self.clone(), address, len, Stream::In, mark);
                Ok(DeviceTensor { dtype, shape, memory: Arc::new(block) })
            }
            Err(error) => {
                self.pool.free(address, stream);
                Err(error)
            }
        }
    }

    /// Enqueues the copy of a tensor that lies in pinned memory, and holds it meanwhile.
    fn copy_in_place(&self, to: Address, tensor: &Tensor, bytes: &[u8]) -> Result<Arc<Mark>> {
        let from = Pinned { address: bytes.as_ptr() as usize, len: bytes.len() };
        self.driver.copy_in(to, from, bytes.len(), self.streams.id(Stream::In))?;
        let (mark, held) = (self.streams.mark(Stream::In)?, tensor.clone());
        self.incoming.after(mark.clone(), move |_| drop(held));
        Ok(mark)
    }

    /// Enqueues copies of some bytes, more than none, by way of pinned memory. While one piece goes over the bus the next is
    /// copied into it.
    fn copy_in(&self, to: Address, bytes: &[u8]) -> Result<Arc<Mark>> {
        let mut under_way: VecDeque<(Arc<Mark>, PinnedBuffer)> = VecDeque::new();
        let mut enqueue = |number: usize, piece: &[u8]| -> Result<Arc<Mark>> {
            let is_full = under_way.len() == PIECES_UNDER_WAY;
            let mut pinned = match if is_full { under_way.pop_front() } else { None } {
                Some((mark, pinned)) => mark.wait_here().map(|()| pinned)?,
                None => self.pinned.take(bytes.len().min(PIECE))?,
            };
            copy(&mut pinned.as_mut_slice()[..piece.len()], piece);
            let to = Address(to.0 + (number * PIECE) as u64);
            self.driver.copy_in(to, pinned.memory(), piece.len(), self.streams.id(Stream::In))?;
            let mark = self.streams.mark(Stream::In)?;
            under_way.push_back((mark.clone(), pinned));
            Ok(mark)
        };
        let last = bytes
            .chunks(PIECE)
            .enumerate()
            .try_fold(None, |_, (number, piece)| enqueue(number, piece).map(Some));
        for (mark, pinned) in under_way {
            self.incoming.after(mark, move |_| drop(pinned));
        }
        last?.map_or_else(|| self.streams.mark(Stream::In), Ok)
    }

    /// Which way a tensor of another GPU comes here.
    pub(super) fn road_from(&self, other: &Engine) -> Road {
        let is_same = std::ptr::eq(self, other);
        Road::choose(is_same, || other.driver.reach(&*self.driver))
    }

    /// A tensor of a GPU within reach in this one's memory; the copy is enqueued, and who uses the tensor comes after it.
    /// It takes a stream of the other GPU's, which waits for what fills the tensor there.
    ///
    /// # Errors
    /// `ResourceExhausted`, and the drivers'.
    pub(super) fn adopt(self: &Arc<Engine>, node: &Arc<str>, tensor: &DeviceTensor) -> Result<DeviceTensor> {
        let DeviceTensor { dtype, shape, memory } = tensor;
        let (dtype, len) = (*dtype, memory.len());
        if len == 0 {
            return self.allocate(node, dtype, shape.clone());
        }
        let from = block(tensor)?;
        let source = from.engine();
        self.filled(node, (dtype, shape.clone()), len, |to| {
            let taken = self.streams.mark(Stream::In)?;
            source.streams.wait(Stream::Peer, &taken)?;
            from.copied_by(Stream::Peer, |at| {
                source.driver.copy_to(&*self.driver, to, at, len, source.streams.id(Stream::Peer))
            })
        })
    }

    /// Brings a tensor into host memory; `done` is called on another thread when it is there.
    pub(super) fn download(self: &Arc<Engine>, tensor: DeviceTensor, done: Transfer<Tensor>) {
        let DeviceTensor { dtype, shape, memory } = tensor;
        if memory.is_empty() {
            return done(Tensor::zeros(dtype, shape).map_err(Error::from));
        }
        let (len, stream) = (memory.len(), self.streams.id(Stream::Out));
        let started = self.pinned.take(len).and_then(|pinned| {
            let copy = |from| self.driver.copy_out(pinned.memory(), from, len, stream);
            let mark = match BorrowedMemory::of(&*memory) {
                Some(borrowed) => {
                    copy(self.see(borrowed)?)?;
                    self.streams.mark(Stream::Out)?
                }
                None => block_of(&memory)?.copied_by(Stream::Out, copy)?,
            };
            Ok((pinned, mark))
        });
        // What others see, here or there, is held until it has been read. Other memory is freed behind the copy, and whoever
        // is told that the tensor is there finds it no longer held here.
        let is_window = BorrowedMemory::of(&*memory).is_some() || memory.shared_block().is_some();
        let window = is_window.then_some(memory);
        match started {
            Ok((pinned, mark)) => self.outgoing.after(mark, move |reached| {
                drop(window);
                let tensor = reached.and_then(|()| {
                    Ok(Tensor::from_buffer(dtype, shape, Buffer::borrowed(Box::new(pinned)))?)
                });
                done(tensor);
            }),
            Err(error) => done(Err(error)),
        }
    }

    /// Waits for all that was enqueued.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.driver.synchronize()
    }
}

/// Bytes that are copied into pinned memory, and from there to a GPU, at a time.
const PIECE: usize = 8 << 20;

/// How many such copies are enqueued before the first is waited for.
const PIECES_UNDER_WAY: usize = 6;

/// Bytes that are worth a thread.
const SHARE: usize = 512 << 10;

/// Copies bytes, more threads than one many: one alone is slower than the bus.
fn copy(to: &mut [u8], from: &[u8]) {
    if to.len() < 2 * SHARE {
        return to.copy_from_slice(from);
    }
    to.par_chunks_mut(SHARE).zip(from.par_chunks(SHARE)).for_each(|(to, from)| to.copy_from_slice(from));
}

/// What a tensor lies in.
///
/// # Errors
/// `Internal` if that is no GPU's memory.
pub(crate) fn block(tensor: &DeviceTensor) -> Result<&Block> {
    block_of(&tensor.memory)
}

pub(super) fn block_of(memory: &Arc<dyn device::DeviceMemory>) -> Result<&Block> {
    let any: &dyn Any = &**memory;
    any.downcast_ref().ok_or_else(|| Error::internal(format!("{memory:?} is no memory of a GPU")))
}

pub(super) fn bytes_of(dtype: DType, shape: &Shape) -> Result<usize> {
    let size = dtype.size().ok_or_else(|| {
        Error::unimplemented(format!("elements of type {dtype} are not for a GPU's memory"))
    })?;
    let bytes = shape.num_elements().checked_mul(size);
    bytes.ok_or_else(|| Error::invalid(format!("a tensor of shape {shape} and type {dtype} is too large")))
}
