//! The device memory of one captured CUDA graph. The graph refers to the memory by address, so the memory is
//! not freed while the graph can be launched.

use super::driver::Address;
use super::gpu_engine::{Engine, block, bytes_of};
use super::memory::{Block, BlockId};
use super::streams::Stream;
use device::Result;
use device::{DeviceMemory, DeviceTensor};
use graph::{DType, Shape};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The memory of one captured graph, freed when the graph and all tensors in the memory are dropped.
#[derive(Debug)]
pub(super) struct Arena {
    engine: Arc<Engine>,
    /// The name under which out-of-memory messages list this memory.
    holder: Arc<str>,
    state: Mutex<ArenaState>,
}

/// The allocations of an [`Arena`].
#[derive(Debug, Default)]
struct ArenaState {
    /// Size in bytes of each allocation.
    sizes: FxHashMap<Address, usize>,
    /// Allocations that no tensor uses any more and that later kernels of the graph may reuse, because the
    /// kernels of a graph run in the order of capture.
    idle: Vec<Address>,
    /// The values of variables that the graph changes, each with the second block through which captured
    /// kernels access it.
    snapshots: Vec<Snapshot>,
    /// True once the capture has ended: allocations are then no longer reused.
    is_closed: bool,
}

/// The value of a variable that the graph reads as an input and also changes. The segment's inputs hold
/// references to the value, so captured kernels access it through a second block at the same address, which has
/// a reference count of its own.
#[derive(Debug)]
struct Snapshot {
    /// The identity of the block that holds the variable's value.
    of: BlockId,
    alias: Arc<dyn DeviceMemory>,
    /// The number of the segment's inputs that refer to this value.
    inputs: usize,
}

impl Arena {
    /// Creates an arena without memory; `holder` is the name for out-of-memory messages.
    pub(super) fn new(engine: Arc<Engine>, holder: Arc<str>) -> Arc<Arena> {
        Arc::new(Arena { engine, holder, state: Mutex::default() })
    }

    /// Returns the GPU to which the arena's memory belongs.
    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Allocates memory for a tensor: an idle allocation of the graph if a large enough one exists, else new
    /// memory from the pool.
    ///
    /// # Errors
    /// The errors of [`KernelStream::allocate`](super::KernelStream::allocate).
    pub(super) fn allocate(self: &Arc<Arena>, dtype: DType, shape: Shape) -> Result<DeviceTensor> {
        let len = bytes_of(dtype, &shape)?;
        if len == 0 {
            return self.engine.allocate(&self.holder, dtype, shape);
        }
        let address = match self.take_idle(len) {
            Some(address) => address,
            None => self.allocate_block(len, || {
                format!("tensor with shape{shape} and type {dtype} for {}", self.holder)
            })?,
        };
        let memory = Arc::new(Block::in_arena(self.engine.clone(), self.clone(), address, len));
        Ok(DeviceTensor { dtype, shape, memory })
    }

    /// Takes the smallest idle allocation of at least `len` bytes.
    fn take_idle(&self, len: usize) -> Option<Address> {
        let mut state = self.state.lock();
        let ArenaState { sizes, idle, .. } = &mut *state;
        let size = |address: &Address| sizes.get(address).copied().unwrap_or(0);
        let fitting = idle.iter().enumerate().filter(|(_, address)| size(address) >= len);
        let (at, _) = fitting.min_by_key(|(_, address)| size(address))?;
        Some(idle.swap_remove(at))
    }

    /// Allocates `len` bytes from the GPU's pool; `description` describes the tensor in the error message.
    fn allocate_block(&self, len: usize, description: impl Fn() -> String) -> Result<Address> {
        let stream = self.engine.streams().id(Stream::Compute);
        let address = self.engine.pool().allocate(len, stream, &self.holder, description)?;
        self.state.lock().sizes.insert(address, len);
        Ok(address)
    }

    /// Marks the allocation at `address` as idle, because no tensor uses it any more. Does nothing after
    /// [`close`](Arena::close), because the finished graph writes the same addresses in each launch.
    pub(super) fn recycle(&self, address: Address) {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.idle.push(address);
        }
    }

    /// Returns the tensor that captured kernels get in place of `input`, the value of a variable that the graph
    /// changes: the same memory with a reference count of its own.
    ///
    /// # Errors
    /// The errors of the driver.
    pub(super) fn snapshot(&self, input: &DeviceTensor) -> Result<DeviceTensor> {
        let of = block(input)?;
        let mut state = self.state.lock();
        let at = match state.snapshots.iter().position(|snapshot| snapshot.of == of.id()) {
            Some(at) => at,
            None => {
                let alias = Arc::new(of.alias()?);
                state.snapshots.push(Snapshot { of: of.id(), alias, inputs: 0 });
                state.snapshots.len() - 1
            }
        };
        let snapshot = &mut state.snapshots[at];
        snapshot.inputs += 1;
        Ok(DeviceTensor { memory: snapshot.alias.clone(), ..input.clone() })
    }

    /// Returns whether the kernel being captured may change a variable's value, because no tensor outside the
    /// segment's inputs shares the memory. The inputs, and the tensors that [`snapshot`](Arena::snapshot)
    /// returned for them, stay alive until the capture ends and are not counted.
    pub(super) fn may_change(&self, value: &DeviceTensor) -> Result<bool> {
        let id = block(value)?.id();
        let state = self.state.lock();
        let holders = |memory: &Arc<dyn DeviceMemory>| Arc::strong_count(memory) - 1;
        Ok(match state.snapshots.iter().find(|snapshot| snapshot.of == id) {
            None => holders(&value.memory) == 0,
            Some(Snapshot { alias, inputs, .. }) => {
                holders(&value.memory) == *inputs && holders(alias) == *inputs
            }
        })
    }

    /// Ends the reuse of idle allocations when the capture is complete.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
    }
}

impl Drop for Arena {
    /// Frees the memory in the compute stream, after the last launch of the graph.
    fn drop(&mut self) {
        let stream = self.engine.streams().id(Stream::Compute);
        for &address in self.state.get_mut().sizes.keys() {
            self.engine.pool().free(address, stream);
        }
    }
}
