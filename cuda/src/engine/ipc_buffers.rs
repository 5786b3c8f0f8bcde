//! IPC buffers: GPU memory that other processes of the machine map to read tensors of this process, and
//! mappings of other processes' buffers. A tensor for another process is copied into an IPC buffer, which takes
//! a GPU little time. Tensors themselves stay in stream-ordered memory, so a variable can be changed without
//! waiting for its readers in other processes.

use super::driver::{Address, Driver, IpcMemory};
use super::gpu_engine::{Engine, block_of};
use super::memory::Block;
use super::pool::Pool;
use super::streams::{Mark, Stream};
use device::peer_buffer::{BorrowedMemory, PeerBuffer, PeerMapping};
use device::shared_block::{MemoryKind, SharedBlock, Sharing};
use device::value::Value;
use device::{DeviceTensor, Transfer};
use device::{Error, Result};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Smallest size of an IPC buffer, in bytes. Sizes are powers of two, the granularity in which GPUs allocate
/// shareable memory.
const MIN_BUFFER: usize = 2 << 20;

/// All IPC buffers of a GPU together may use at most the GPU's memory limit divided by this number.
const MEMORY_DIVISOR: u64 = 8;

/// Time within which peers should unmap a buffer after it is closed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval for polling whether peers have unmapped buffers.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Time after a failed allocation of an IPC buffer in which no further allocation is attempted.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Name under which out-of-memory messages list the memory of IPC buffers.
const HOLDER: &str = "tensors that other processes read";

/// A block of this GPU's memory that other processes may map.
#[derive(Debug)]
pub(super) struct IpcBuffer {
    sharing: Sharing,
    shared: IpcMemory,
    len: usize,
    driver: Arc<dyn Driver>,
}

impl SharedBlock for IpcBuffer {
    fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    fn len(&self) -> usize {
        self.len
    }

    fn descriptor(&self) -> io::Result<OwnedFd> {
        self.shared.descriptor.try_clone()
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Device
    }
}

impl Drop for IpcBuffer {
    fn drop(&mut self) {
        self.driver.unmap(self.shared.address, self.len);
    }
}

/// The IPC buffers of a GPU.
#[derive(Debug, Default)]
pub(super) struct IpcBuffers(Mutex<IpcBuffersState>);

/// The idle buffers of a GPU, the size of all its IPC buffers, and the times of closed buffers and failed
/// allocations.
#[derive(Debug, Default)]
struct IpcBuffersState {
    /// Buffers that are not in use, in the order in which they were returned.
    idle: VecDeque<IpcBuffer>,
    /// Bytes of all buffers, idle or in use.
    bytes: u64,
    /// Time when a buffer that peers may have mapped was last closed; its memory is free only when the peers
    /// have unmapped it.
    closed: Option<Instant>,
    /// Time of the last allocation that failed, and its size in bytes.
    full: Option<(Instant, usize)>,
}

impl IpcBuffers {
    /// Returns the time by which peers should have unmapped the closed buffers; `None` if no buffer that a peer
    /// may have mapped was closed.
    pub(super) fn release_deadline(&self) -> Option<Instant> {
        Some(self.0.lock().closed? + RELEASE_TIMEOUT)
    }

    /// Returns whether an allocation of at most `size` bytes failed within the last [`RETRY_INTERVAL`].
    fn is_full(&self, size: usize) -> bool {
        self.0.lock().full.is_some_and(|(at, least)| size >= least && at.elapsed() < RETRY_INTERVAL)
    }
}

/// Sleeps for [`POLL_INTERVAL`] and returns `true`; returns `false` at once if `time` has passed or the calling
/// thread must not sleep. Threads of the worker's shared pool must not sleep, because the event to wait for may
/// depend on work that only they run.
pub(super) fn try_wait_before(time: Instant) -> bool {
    let waits = !visit::accepts_inline_tasks() && Instant::now() < time;
    if waits {
        std::thread::park_timeout(POLL_INTERVAL);
    }
    waits
}

impl Pool {
    /// Takes or allocates a buffer of at least `len` bytes with arbitrary content; returns `None` if there is
    /// no memory for it.
    pub(super) fn take_ipc_buffer(&self, len: usize) -> Option<IpcBuffer> {
        let size = len.max(MIN_BUFFER).checked_next_power_of_two()?;
        let idle = {
            let idle = &mut self.ipc_buffers.0.lock().idle;
            let at = idle.iter().rposition(|buffer| buffer.len == size);
            at.and_then(|at| idle.remove(at))
        };
        idle.or_else(|| self.open(size))
    }

    /// Allocates a buffer of `size` bytes.
    fn open(&self, size: usize) -> Option<IpcBuffer> {
        if self.ipc_buffers.is_full(size) {
            return None;
        }
        let bytes = size as u64;
        // Idle buffers of other sizes are closed to make room.
        while !self.try_add_bytes(bytes) {
            let oldest = self.ipc_buffers.0.lock().idle.pop_front();
            self.close(oldest?);
        }
        let Some(shared) = self.share(size) else {
            self.ipc_buffers.0.lock().bytes -= bytes;
            return None;
        };
        self.record_allocation(shared.address, bytes, &HOLDER.into());
        Some(IpcBuffer { sharing: Sharing::new(), shared, len: size, driver: self.driver.clone() })
    }

    /// Allocates shareable memory within the GPU's limit.
    fn share(&self, size: usize) -> Option<IpcMemory> {
        if !self.try_count(size as u64) {
            return None;
        }
        let shared = self.share_after_trim(size).unwrap_or_else(|error| {
            tracing::debug!("tensors go to other processes through the host: {error}");
            None
        });
        if shared.is_none() {
            self.ipc_buffers.0.lock().full = Some((Instant::now(), size));
            self.uncount(size as u64);
        }
        shared
    }

    /// Allocates shareable memory, after trimming the driver's cache if necessary. A reserved memory pool is
    /// not trimmed, because a trim would return its memory to the system.
    fn share_after_trim(&self, size: usize) -> Result<Option<IpcMemory>> {
        match self.driver.share(size)? {
            None if !self.is_reserved => {
                self.driver.trim()?;
                self.driver.share(size)
            }
            shared => Ok(shared),
        }
    }

    /// Counts the bytes of a new buffer if all buffers together stay within the memory limit for IPC buffers;
    /// returns whether they do.
    fn try_add_bytes(&self, bytes: u64) -> bool {
        let mut ipc_buffers = self.ipc_buffers.0.lock();
        let fits = ipc_buffers.bytes + bytes <= self.limit / MEMORY_DIVISOR;
        if fits {
            ipc_buffers.bytes += bytes;
        }
        fits
    }

    /// Returns an unused buffer to the pool, or closes it if a peer may still read it.
    pub(super) fn recycle(&self, buffer: IpcBuffer) {
        match buffer.sharing.is_read_only() {
            true => self.close(buffer),
            false => self.ipc_buffers.0.lock().idle.push_back(buffer),
        }
    }

    /// Closes idle buffers, and returns whether there were any.
    pub(super) fn close_idle(&self) -> bool {
        let idle = std::mem::take(&mut self.ipc_buffers.0.lock().idle);
        let were_there = !idle.is_empty();
        idle.into_iter().for_each(|buffer| self.close(buffer));
        were_there
    }

    /// Frees a buffer's memory.
    fn close(&self, buffer: IpcBuffer) {
        // The allocation's record is removed first, because the address may be reused as soon as the memory is
        // freed.
        self.remove_allocation(buffer.shared.address);
        let mut ipc_buffers = self.ipc_buffers.0.lock();
        ipc_buffers.bytes -= buffer.len as u64;
        if buffer.sharing.is_known() || buffer.sharing.is_read_only() {
            ipc_buffers.closed = Some(Instant::now());
        }
        drop(ipc_buffers);
        drop(buffer);
    }
}

impl Engine {
    /// Copies a tensor into an IPC buffer for other processes, or to host memory if there is no buffer; `done`
    /// is called on another thread when the copy has ended.
    pub(super) fn lend(self: &Arc<Engine>, tensor: DeviceTensor, done: Transfer<Value>) {
        let Some(buffer) = self.pool().take_ipc_buffer(tensor.memory.len()) else {
            return self.download(tensor, Box::new(move |tensor| done(tensor.map(Value::from))));
        };
        let lent = self.copy_into(buffer, &tensor);
        // The tensor is released before `done` is called.
        drop(tensor);
        match lent {
            Ok((lent, mark)) => {
                self.peer_waiter().run_after(mark, move |reached| done(reached.map(|()| lent.into())))
            }
            Err(error) => done(Err(error)),
        }
    }

    /// Enqueues the copy of a tensor into an IPC buffer.
    fn copy_into(
        self: &Arc<Engine>,
        buffer: IpcBuffer,
        tensor: &DeviceTensor,
    ) -> Result<(DeviceTensor, Arc<Mark>)> {
        let (to, len) = (buffer.shared.address, tensor.memory.len());
        let stream = self.streams().id(Stream::Peer);
        let copied = block_of(&tensor.memory).and_then(|from| {
            from.record_copy(Stream::Peer, |from| self.driver().copy(to, from, len, stream))
        });
        match copied {
            Ok(mark) => {
                let memory = Arc::new(Block::in_ipc_buffer(self.clone(), buffer, to, len, mark.clone()));
                Ok((DeviceTensor { memory, ..tensor.clone() }, mark))
            }
            Err(error) => {
                self.pool().recycle(buffer);
                Err(error)
            }
        }
    }

    /// Returns whether this GPU can map another process's buffer.
    pub(super) fn can_map(self: &Arc<Engine>, window: &PeerBuffer) -> bool {
        let view = self.view(window);
        view.inspect_err(|error| tracing::debug!("tensors of another process come by the host: {error}"))
            .is_ok()
    }

    /// Returns the address of another process's buffer in this GPU's address space, mapping the buffer on first
    /// use. May block.
    ///
    /// # Errors
    /// The error of the driver, if the GPU cannot map the buffer.
    fn view(self: &Arc<Engine>, window: &PeerBuffer) -> Result<Address> {
        let find_mapping = |mapping: &Mapping| Arc::ptr_eq(&mapping.engine, self).then_some(mapping.address);
        let map = || {
            let (engine, len) = (self.clone(), window.len());
            let address = self.driver().map(window.descriptor().as_fd(), len)?;
            Ok::<_, Error>(Mapping { engine, address, len })
        };
        window.view(find_mapping, map)?.ok_or_else(|| Error::internal("a view of a window got lost"))
    }

    /// Returns this GPU's address of a borrowed buffer. If the GPU cannot map the buffer, the lender is
    /// notified.
    ///
    /// # Errors
    /// The errors of the driver.
    pub(super) fn map_borrowed(self: &Arc<Engine>, borrowed: &BorrowedMemory) -> Result<Address> {
        self.view(borrowed.window()).inspect_err(|_| borrowed.report_no_access())
    }

    /// Copies a borrowed tensor of another process into this GPU's memory. The copy is only enqueued; work on
    /// the copied tensor is ordered after the copy. The borrowed buffer is held until the copy has ended.
    /// Allocation, mapping and enqueueing run on a waiter thread, because allocating and mapping may block.
    pub(super) fn copy_borrowed(
        self: &Arc<Engine>,
        node: Arc<str>,
        tensor: DeviceTensor,
        done: Transfer<Value>,
    ) {
        let own = self.clone();
        self.borrow_waiter().run(move || done(own.map_and_copy(&node, tensor)));
    }

    /// Maps a borrowed tensor and enqueues its copy.
    ///
    /// # Errors
    /// `ResourceExhausted`, and the errors of the driver.
    fn map_and_copy(self: &Arc<Engine>, node: &Arc<str>, tensor: DeviceTensor) -> Result<Value> {
        let borrowed = BorrowedMemory::of(&*tensor.memory);
        let borrowed = borrowed.ok_or_else(|| Error::internal(format!("{tensor:?} is lent by nobody")))?;
        let (from, len) = (self.map_borrowed(borrowed)?, tensor.memory.len());
        let copied = self.allocate_filled(node, (tensor.dtype, tensor.shape), len, |to| {
            self.driver().copy(to, from, len, self.streams().id(Stream::In))?;
            let mark = self.streams().mark(Stream::In)?;
            self.upload_waiter().run_after(mark.clone(), move |_| drop(tensor.memory));
            Ok(mark)
        })?;
        Ok(copied.into())
    }
}

/// A mapping of another process's buffer in a GPU's address space, unmapped on drop.
#[derive(Debug)]
struct Mapping {
    engine: Arc<Engine>,
    address: Address,
    len: usize,
}

impl PeerMapping for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (driver, address, len) = (self.engine.driver().clone(), self.address, self.len);
        self.engine.peer_waiter().run(move || driver.unmap(address, len));
    }
}
