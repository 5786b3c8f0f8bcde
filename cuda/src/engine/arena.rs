//! The memory that a captured graph works in: its addresses are in the graph, so it is the graph's for as long as that
//! may run.

use super::driver::Address;
use super::engine::{Engine, block, bytes_of};
use super::memory::{Block, BlockId};
use super::streams::Stream;
use device::Result;
use device::{DeviceMemory, DeviceTensor};
use graph::{DType, Shape};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Memory of one captured graph, given back when neither the graph nor a tensor in it is left.
#[derive(Debug)]
pub(super) struct Arena {
    engine: Arc<Engine>,
    /// Who is said to hold it, where memory runs out.
    holder: Arc<str>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes at each address.
    taken: FxHashMap<Address, usize>,
    /// What later work of the graph may use again, since it runs in the order in which it was captured.
    idle: Vec<Address>,
    snapshots: Vec<Snapshot>,
    is_closed: bool,
}

/// The value of a variable that the graph changes, as some of its inputs: they hold it, and the graph is captured with
/// something else that is held in its place.
#[derive(Debug)]
struct Snapshot {
    of: BlockId,
    stand_in: Arc<dyn DeviceMemory>,
    inputs: usize,
}

impl Arena {
    pub(super) fn new(engine: Arc<Engine>, holder: Arc<str>) -> Arc<Arena> {
        Arc::new(Arena { engine, holder, state: Mutex::default() })
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Memory for a tensor: what the graph has done with, or more.
    ///
    /// # Errors
    /// As [`Lane::allocate`](super::Lane::allocate).
    pub(super) fn allocate(self: &Arc<Arena>, dtype: DType, shape: Shape) -> Result<DeviceTensor> {
        let len = bytes_of(dtype, &shape)?;
        if len == 0 {
            return self.engine.allocate(&self.holder, dtype, shape);
        }
        let address = match self.reuse(len) {
            Some(address) => address,
            None => {
                self.take(len, || format!("tensor with shape{shape} and type {dtype} for {}", self.holder))?
            }
        };
        let memory = Arc::new(Block::of_arena(self.engine.clone(), self.clone(), address, len));
        Ok(DeviceTensor { dtype, shape, memory })
    }

    /// The smallest idle memory that suffices.
    fn reuse(&self, len: usize) -> Option<Address> {
        let mut state = self.state.lock();
        let State { taken, idle, .. } = &mut *state;
        let size = |address: &Address| taken.get(address).copied().unwrap_or(0);
        let fitting = idle.iter().enumerate().filter(|(_, address)| size(address) >= len);
        let (at, _) = fitting.min_by_key(|(_, address)| size(address))?;
        Some(idle.swap_remove(at))
    }

    fn take(&self, len: usize, what: impl Fn() -> String) -> Result<Address> {
        let stream = self.engine.streams().id(Stream::Compute);
        let address = self.engine.pool().allocate(len, stream, &self.holder, what)?;
        self.state.lock().taken.insert(address, len);
        Ok(address)
    }

    /// Nobody holds a tensor at this address any more.
    pub(super) fn take_back(&self, address: Address) {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.idle.push(address);
        }
    }

    /// What stands for an input that is the value of a variable, which the graph changes when nobody reads it any more.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn snapshot(&self, input: &DeviceTensor) -> Result<DeviceTensor> {
        let of = block(input)?;
        let mut state = self.state.lock();
        let at = match state.snapshots.iter().position(|snapshot| snapshot.of == of.id()) {
            Some(at) => at,
            None => {
                let stand_in = Arc::new(of.stand_in()?);
                state.snapshots.push(Snapshot { of: of.id(), stand_in, inputs: 0 });
                state.snapshots.len() - 1
            }
        };
        let snapshot = &mut state.snapshots[at];
        snapshot.inputs += 1;
        Ok(DeviceTensor { memory: snapshot.stand_in.clone(), ..input.clone() })
    }

    /// Whether nobody reads a variable's value any more, now that work is captured which changes it: the inputs that are
    /// that value are held until all has been captured, and so is what stands for them.
    pub(super) fn may_change(&self, value: &DeviceTensor) -> Result<bool> {
        let id = block(value)?.id();
        let state = self.state.lock();
        let holders = |memory: &Arc<dyn DeviceMemory>| Arc::strong_count(memory) - 1;
        Ok(match state.snapshots.iter().find(|snapshot| snapshot.of == id) {
            None => holders(&value.memory) == 0,
            Some(Snapshot { stand_in, inputs, .. }) => {
                holders(&value.memory) == *inputs && holders(stand_in) == *inputs
            }
        })
    }

    /// The graph is whole: nothing more works in this memory.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
    }
}

impl Drop for Arena {
    /// Behind the last run of the graph.
    fn drop(&mut self) {
        let stream = self.engine.streams().id(Stream::Compute);
        for &address in self.state.get_mut().taken.keys() {
            self.engine.pool().free(address, stream);
        }
    }
}
