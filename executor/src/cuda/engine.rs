//! A GPU in use: its streams, its memory, its kernels. What is asked of it is enqueued, and in the right order.

use super::driver::{Address, Driver, StreamId};
use super::memory::Block;
use super::pinned::PinnedPool;
use super::pool::Pool;
use super::program::{Function, Program, Programs};
use super::road::Road;
use super::streams::{Stream, Streams};
use super::waiter::Waiter;
use crate::device::{DeviceTensor, Transfer};
use crate::error::{Error, Result};
use crate::gpus::GpuOptions;
use graph::tensor::Buffer;
use graph::{DType, Shape, Tensor};
use parking_lot::{Mutex, MutexGuard};
use std::any::Any;
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
        let pool = Pool::new(driver.clone(), device, limit);
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

    pub(super) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    pub(super) fn shared_driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Whether kernels get memory filled with [`POISON`](crate::gpus::POISON).
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
        let mut pinned = self.pinned.take(bytes.len())?;
        pinned.as_mut_slice().copy_from_slice(bytes);
        let stream = self.streams.id(Stream::In);
        let what = || format!("tensor with shape{shape} and type {dtype} for {node}");
        let address = self.pool.allocate(bytes.len(), stream, node, what)?;
        let copied = self
            .driver
            .copy_in(address, pinned.memory(), bytes.len(), stream)
            .and_then(|()| self.streams.mark(Stream::In));
        let mark = match copied {
            Ok(mark) => mark,
            Err(error) => {
                self.pool.free(address, stream);
                return Err(error);
            }
        };
        let block = Block::filled(self.clone(), address, bytes.len(), Stream::In, mark.clone());
        self.incoming.after(mark, move |_| drop(pinned));
        Ok(DeviceTensor { dtype, shape, memory: Arc::new(block) })
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
        let (source, own) = (from.engine(), self.streams.id(Stream::In));
        let what = || format!("tensor with shape{shape} and type {dtype} for {node}");
        let address = self.pool.allocate(len, own, node, what)?;
        let copied = self.streams.mark(Stream::In).and_then(|taken| {
            source.streams.wait(Stream::Peer, &taken)?;
            from.copied_by(Stream::Peer, |at| {
                source.driver.copy_to(&*self.driver, address, at, len, source.streams.id(Stream::Peer))
            })
        });
        let mark = match copied {
            Ok(mark) => mark,
            Err(error) => {
                self.pool.free(address, own);
                return Err(error);
            }
        };
        let block = Block::filled(self.clone(), address, len, Stream::In, mark);
        Ok(DeviceTensor { dtype, shape: shape.clone(), memory: Arc::new(block) })
    }

    /// Brings a tensor into host memory; `done` is called on another thread when it is there.
    pub(super) fn download(self: &Arc<Engine>, tensor: DeviceTensor, done: Transfer<Tensor>) {
        let DeviceTensor { dtype, shape, memory } = tensor;
        if memory.is_empty() {
            return done(Tensor::zeros(dtype, shape).map_err(Error::from));
        }
        let started = block_of(&memory).and_then(|block| {
            let len = memory.len();
            let pinned = self.pinned.take(len)?;
            let stream = self.streams.id(Stream::Out);
            let mark = block
                .copied_by(Stream::Out, |from| self.driver.copy_out(pinned.memory(), from, len, stream))?;
            Ok((pinned, mark))
        });
        // Whoever is told that the tensor is there finds it no longer held here.
        drop(memory);
        match started {
            Ok((pinned, mark)) => self.outgoing.after(mark, move |reached| {
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

/// What a tensor lies in.
///
/// # Errors
/// `Internal` if that is no GPU's memory.
pub(crate) fn block(tensor: &DeviceTensor) -> Result<&Block> {
    block_of(&tensor.memory)
}

pub(super) fn block_of(memory: &Arc<dyn crate::device::DeviceMemory>) -> Result<&Block> {
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
