//! An opened GPU: its streams, memory and kernels. The engine enqueues work and orders it across streams.

use super::copy_path::CopyPath;
use super::driver::{Address, Driver, PinnedMemory, StreamId};
use super::memory::Block;
use super::pinned::{PinnedBuffer, PinnedPool};
use super::pool::Pool;
use super::program::{Function, Program, Programs};
use super::streams::{Mark, Stream, Streams};
use super::waiter_thread::WaiterThread;
use device::gpu_options::GpuOptions;
use device::peer_buffer::BorrowedMemory;
use device::{DeviceTensor, Transfer};
use device::{Error, Result};
use graph::tensor::Buffer;
use graph::{DType, Shape, Tensor};
use parking_lot::{Mutex, MutexGuard};
use rayon::prelude::*;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

/// One opened GPU.
#[derive(Debug)]
pub struct Engine {
    driver: Arc<dyn Driver>,
    streams: Streams,
    pool: Pool,
    pinned: Arc<PinnedPool>,
    programs: Programs,
    /// The thread that waits for copies to the GPU.
    upload_waiter: WaiterThread,
    /// The thread that waits for copies to the host.
    download_waiter: WaiterThread,
    /// The thread that waits for copies into IPC buffers, and unmaps the buffers of other processes.
    peer_waiter: WaiterThread,
    /// The thread that copies tensors out of other processes' IPC buffers.
    borrow_waiter: WaiterThread,
    tf32: bool,
    poison: bool,
    /// The CUDA stream for captures, locked during a capture; `None` if CUDA graphs are turned off.
    capture_stream: Option<Mutex<StreamId>>,
}

impl Engine {
    /// Opens a GPU with streams, a memory pool and waiter threads of its own.
    ///
    /// # Errors
    /// The errors of the driver; `ResourceExhausted` if the options reserve all memory at once and the GPU has less.
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
            upload_waiter: WaiterThread::new("anabranch-gpu-in")?,
            download_waiter: WaiterThread::new("anabranch-gpu-out")?,
            peer_waiter: WaiterThread::new("anabranch-gpu-between")?,
            borrow_waiter: WaiterThread::new("anabranch-gpu-take")?,
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

    /// Returns the thread that waits for copies from the host and from other processes.
    pub(super) fn upload_waiter(&self) -> &WaiterThread {
        &self.upload_waiter
    }

    /// Returns the thread that waits for copies into IPC buffers and unmaps the buffers of other processes.
    /// Jobs on this thread allocate no memory.
    pub(super) fn peer_waiter(&self) -> &WaiterThread {
        &self.peer_waiter
    }

    /// Returns the thread that copies tensors out of other processes' IPC buffers.
    pub(super) fn borrow_waiter(&self) -> &WaiterThread {
        &self.borrow_waiter
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the number of bytes of the GPU's memory that are in use.
    pub fn used(&self) -> u64 {
        self.pool.used()
    }

    /// Returns whether float32 factors may be rounded to TF32.
    pub fn tf32(&self) -> bool {
        self.tf32
    }

    /// Allocates device memory for a tensor that kernels will write.
    ///
    /// # Errors
    /// `ResourceExhausted`, with a message that lists the tensor, the node that requests the memory and the nodes
    /// that hold most memory; `Unimplemented` for dtypes without a device representation.
    pub(super) fn allocate(
        self: &Arc<Engine>,
        node: &Arc<str>,
        dtype: DType,
        shape: Shape,
    ) -> Result<DeviceTensor> {
        let len = bytes_of(dtype, &shape)?;
        let description = || format!("tensor with shape{shape} and type {dtype} for {node}");
        let address = match len {
            0 => Address(0),
            len => self.pool.allocate(len, self.streams.id(Stream::Compute), node, description)?,
        };
        let memory = Arc::new(Block::new(self.clone(), address, len));
        Ok(DeviceTensor { dtype, shape, memory })
    }

    /// Returns the kernel of a program, compiled on first use.
    ///
    /// # Errors
    /// `Internal` with the compiler's message.
    pub fn function(&self, program: Program) -> Result<Arc<Function>> {
        self.programs.function(program, |program| self.driver.load(program))
    }

    pub(super) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Returns whether memory is filled with [`POISON`](device::gpu_options::POISON) before kernels get it.
    pub(super) fn poisons(&self) -> bool {
        self.poison
    }

    /// Locks the CUDA stream for captures; returns `None` if CUDA graphs are turned off.
    pub(super) fn capture_stream(&self) -> Option<MutexGuard<'_, StreamId>> {
        self.capture_stream.as_ref().map(Mutex::lock)
    }

    /// Copies a host tensor to the GPU. The copy is only enqueued; work on the tensor is ordered after the
    /// copy.
    ///
    /// # Errors
    /// `ResourceExhausted`, and the errors of the driver.
    pub fn upload(self: &Arc<Engine>, node: &Arc<str>, tensor: &Tensor) -> Result<DeviceTensor> {
        let (dtype, shape, bytes) = (tensor.dtype(), tensor.shape().clone(), tensor.bytes()?);
        if bytes.is_empty() {
            return self.allocate(node, dtype, shape);
        }
        self.allocate_filled(node, (dtype, shape), bytes.len(), |to| match PinnedBuffer::is_pinned(tensor) {
            true => self.copy_in_place(to, tensor, bytes),
            false => self.copy_in(to, bytes),
        })
    }

    /// Allocates memory for a tensor and lets `copy` fill it; `copy` returns the event, possibly of another
    /// GPU's stream, at which the memory is filled.
    ///
    /// # Errors
    /// `ResourceExhausted`, and the errors of `copy`.
    pub(super) fn allocate_filled(
        self: &Arc<Engine>,
        node: &Arc<str>,
        (dtype, shape): (DType, Shape),
        len: usize,
        copy: impl FnOnce(Address) -> Result<Arc<Mark>>,
    ) -> Result<DeviceTensor> {
        let stream = self.streams.id(Stream::In);
        let description = || format!("tensor with shape{shape} and type {dtype} for {node}");
        let address = self.pool.allocate(len, stream, node, description)?;
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

    /// Enqueues the copy to the GPU of a tensor that is already in pinned memory, and holds the tensor until
    /// the copy has ended.
    fn copy_in_place(&self, to: Address, tensor: &Tensor, bytes: &[u8]) -> Result<Arc<Mark>> {
        let from = PinnedMemory { address: bytes.as_ptr() as usize, len: bytes.len() };
        self.driver.copy_in(to, from, bytes.len(), self.streams.id(Stream::In))?;
        let (mark, held) = (self.streams.mark(Stream::In)?, tensor.clone());
        self.upload_waiter.run_after(mark.clone(), move |_| drop(held));
        Ok(mark)
    }

    /// Enqueues the copy of `bytes`, which are not empty, through pinned memory to the GPU, in chunks: while
    /// one chunk goes over the bus, the next is copied into pinned memory.
    fn copy_in(&self, to: Address, bytes: &[u8]) -> Result<Arc<Mark>> {
        let mut in_flight: VecDeque<(Arc<Mark>, PinnedBuffer)> = VecDeque::new();
        let mut enqueue = |number: usize, chunk: &[u8]| -> Result<Arc<Mark>> {
            let is_full = in_flight.len() == MAX_CHUNKS_IN_FLIGHT;
            let mut pinned = match if is_full { in_flight.pop_front() } else { None } {
                Some((mark, pinned)) => mark.wait_on_host().map(|()| pinned)?,
                None => self.pinned.take(bytes.len().min(UPLOAD_CHUNK))?,
            };
            copy(&mut pinned.as_mut_slice()[..chunk.len()], chunk);
            let to = Address(to.0 + (number * UPLOAD_CHUNK) as u64);
            self.driver.copy_in(to, pinned.memory(), chunk.len(), self.streams.id(Stream::In))?;
            let mark = self.streams.mark(Stream::In)?;
            in_flight.push_back((mark.clone(), pinned));
            Ok(mark)
        };
        let last = bytes
            .chunks(UPLOAD_CHUNK)
            .enumerate()
            .try_fold(None, |_, (number, chunk)| enqueue(number, chunk).map(Some));
        for (mark, pinned) in in_flight {
            self.upload_waiter.run_after(mark, move |_| drop(pinned));
        }
        last?.map_or_else(|| self.streams.mark(Stream::In), Ok)
    }

    /// Returns the path by which a tensor of another GPU is copied to this GPU.
    pub(super) fn copy_path_from(&self, other: &Engine) -> CopyPath {
        let is_same = std::ptr::eq(self, other);
        CopyPath::choose(is_same, || other.driver.enable_peer_access(&*self.driver))
    }

    /// Copies a tensor from a GPU with peer access into this GPU's memory. The copy is only enqueued; work on
    /// the copied tensor is ordered after the copy. The copy runs in a stream of the source GPU, after the work
    /// that fills the source tensor.
    ///
    /// # Errors
    /// `ResourceExhausted`, and the errors of both GPUs' drivers.
    pub(super) fn adopt(self: &Arc<Engine>, node: &Arc<str>, tensor: &DeviceTensor) -> Result<DeviceTensor> {
        let DeviceTensor { dtype, shape, memory } = tensor;
        let (dtype, len) = (*dtype, memory.len());
        if len == 0 {
            return self.allocate(node, dtype, shape.clone());
        }
        let from = block(tensor)?;
        let source = from.engine();
        self.allocate_filled(node, (dtype, shape.clone()), len, |to| {
            let taken = self.streams.mark(Stream::In)?;
            source.streams.wait(Stream::Peer, &taken)?;
            from.record_copy(Stream::Peer, |at| {
                source.driver.copy_to_peer(&*self.driver, to, at, len, source.streams.id(Stream::Peer))
            })
        })
    }

    /// Copies a tensor to host memory, and calls `done` on another thread when the copy has ended.
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
                    copy(self.map_borrowed(borrowed)?)?;
                    self.streams.mark(Stream::Out)?
                }
                None => block_of(&memory)?.record_copy(Stream::Out, copy)?,
            };
            Ok((pinned, mark))
        });
        // An IPC buffer, of this or of another process, is held until the copy has ended. Other memory is
        // released before `done` runs, because the driver frees it in stream order after the copy.
        let is_ipc_buffer = BorrowedMemory::of(&*memory).is_some() || memory.shared_block().is_some();
        let lent = is_ipc_buffer.then_some(memory);
        match started {
            Ok((pinned, mark)) => self.download_waiter.run_after(mark, move |reached| {
                drop(lent);
                let tensor = reached.and_then(|()| {
                    Ok(Tensor::from_buffer(dtype, shape, Buffer::borrowed(Box::new(pinned)))?)
                });
                done(tensor);
            }),
            Err(error) => done(Err(error)),
        }
    }

    /// Blocks until all enqueued work has completed.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.driver.synchronize()
    }
}

/// Size in bytes of the chunks in which an upload is copied into pinned memory and from there to the GPU.
const UPLOAD_CHUNK: usize = 8 << 20;

/// Largest number of upload chunks that are in flight at a time.
const MAX_CHUNKS_IN_FLIGHT: usize = 6;

/// Number of bytes that each thread copies in a parallel host copy.
const COPY_CHUNK: usize = 512 << 10;

/// Copies bytes within host memory, with several threads if there are many bytes, because one thread is slower
/// than the bus.
fn copy(to: &mut [u8], from: &[u8]) {
    if to.len() < 2 * COPY_CHUNK {
        return to.copy_from_slice(from);
    }
    to.par_chunks_mut(COPY_CHUNK)
        .zip(from.par_chunks(COPY_CHUNK))
        .for_each(|(to, from)| to.copy_from_slice(from));
}

/// Returns the device memory block of a tensor.
///
/// # Errors
/// `Internal` if the tensor is not in a GPU's memory.
pub(crate) fn block(tensor: &DeviceTensor) -> Result<&Block> {
    block_of(&tensor.memory)
}

/// Returns the GPU memory block behind a [`DeviceMemory`](device::DeviceMemory) object; see [`block`].
pub(super) fn block_of(memory: &Arc<dyn device::DeviceMemory>) -> Result<&Block> {
    let any: &dyn Any = &**memory;
    any.downcast_ref().ok_or_else(|| Error::internal(format!("{memory:?} is no memory of a GPU")))
}

/// Returns the size in bytes of a tensor of this dtype and shape.
pub(super) fn bytes_of(dtype: DType, shape: &Shape) -> Result<usize> {
    let size = dtype.size().ok_or_else(|| {
        Error::unimplemented(format!("elements of type {dtype} are not for a GPU's memory"))
    })?;
    let bytes = shape.num_elements().checked_mul(size);
    bytes.ok_or_else(|| Error::invalid(format!("a tensor of shape {shape} and type {dtype} is too large")))
}
