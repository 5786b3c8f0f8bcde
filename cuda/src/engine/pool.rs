//! A GPU's memory pool: enforces the memory limit, and accounts allocations to nodes for out-of-memory
//! messages.

use super::driver::{Address, Driver, StreamId};
use super::ipc_buffers::{IpcBuffers, try_wait_before};
use device::{Error, Result};
use graph::Code;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::fmt::Write;
use std::sync::Arc;

/// The memory of one GPU. The driver caches freed memory and reuses it in stream order.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) driver: Arc<dyn Driver>,
    /// The device's name, for error messages.
    device: String,
    pub(super) limit: u64,
    state: Mutex<PoolState>,
    pub(super) ipc_buffers: IpcBuffers,
    /// True if the whole limit was allocated at once and stays cached in the driver.
    pub(super) is_reserved: bool,
}

/// The number of bytes in use in a pool, and its allocations by address.
#[derive(Debug, Default)]
struct PoolState {
    used: u64,
    allocations: FxHashMap<Address, Allocation>,
}

/// One allocation of GPU memory.
#[derive(Debug)]
struct Allocation {
    bytes: u64,
    /// The node that requested the memory.
    node: Arc<str>,
}

/// Largest number of nodes that an out-of-memory message lists.
const MAX_NAMED_HOLDERS: usize = 5;

impl Pool {
    /// Returns a pool of at most `limit` bytes.
    pub(super) fn new(driver: Arc<dyn Driver>, device: String, limit: u64) -> Pool {
        let (state, ipc_buffers) = <(Mutex<PoolState>, IpcBuffers)>::default();
        Pool { driver, device, limit, state, ipc_buffers, is_reserved: false }
    }

    /// Allocates the whole memory limit from the driver and frees it again, so that the driver keeps the memory
    /// cached.
    pub(super) fn reserve(&mut self, stream: StreamId) -> Result<()> {
        let bytes = usize::try_from(self.limit).unwrap_or(usize::MAX);
        match self.driver.allocate(bytes, stream)? {
            Some(all) => {
                self.driver.free(all, stream);
                self.is_reserved = true;
                Ok(())
            }
            None => Err(self.exhausted(bytes, "all memory that this process may take")),
        }
    }

    /// Allocates memory in the order of the stream; `description` names the purpose of the memory in an error
    /// message.
    ///
    /// # Errors
    /// `ResourceExhausted`, with the nodes that hold most memory.
    pub(super) fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        node: &Arc<str>,
        description: impl Fn() -> String,
    ) -> Result<Address> {
        let size = bytes as u64;
        let fits = self.try_count(size) || self.close_idle() && self.try_count(size);
        if !fits {
            return Err(self.exhausted(bytes, &description()));
        }
        let allocated = match self.driver.allocate(bytes, stream) {
            Ok(None) => self.allocate_after_trim(bytes, stream),
            other => other,
        };
        let failure = match allocated {
            Ok(Some(address)) => {
                self.record_allocation(address, size, node);
                return Ok(address);
            }
            Ok(None) => None,
            Err(error) => Some(error),
        };
        self.uncount(size);
        Err(failure.unwrap_or_else(|| self.exhausted(bytes, &description())))
    }

    /// Retries an allocation after releasing cached memory: blocks freed in other streams, blocks of other
    /// sizes, and idle IPC buffers. Waits a moment for peers to unmap IPC buffers, because mapped memory is not
    /// free.
    fn allocate_after_trim(&self, bytes: usize, stream: StreamId) -> Result<Option<Address>> {
        self.close_idle();
        self.driver.synchronize()?;
        self.driver.trim()?;
        let until = self.ipc_buffers.release_deadline();
        loop {
            let found = self.driver.allocate(bytes, stream)?;
            if found.is_some() || !until.is_some_and(try_wait_before) {
                return Ok(found);
            }
            self.close_idle();
        }
    }

    /// Frees memory after the work enqueued in the stream so far.
    pub(super) fn free(&self, address: Address, stream: StreamId) {
        self.remove_allocation(address);
        self.driver.free(address, stream);
    }

    /// Counts bytes as used if the limit allows it; returns whether it does.
    pub(super) fn try_count(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let used = state.used.saturating_add(bytes);
        let fits = used <= self.limit;
        if fits {
            state.used = used;
        }
        fits
    }

    /// Subtracts bytes that [`try_count`](Pool::try_count) has counted, after a failed allocation.
    pub(super) fn uncount(&self, bytes: u64) {
        self.state.lock().used -= bytes;
    }

    /// Records the node for which counted bytes were allocated.
    pub(super) fn record_allocation(&self, address: Address, bytes: u64, node: &Arc<str>) {
        self.state.lock().allocations.insert(address, Allocation { bytes, node: node.clone() });
    }

    /// Removes the record of an allocation, and its bytes from the count.
    pub(super) fn remove_allocation(&self, address: Address) {
        let mut state = self.state.lock();
        if let Some(allocation) = state.allocations.remove(&address) {
            state.used -= allocation.bytes;
        }
    }

    /// Returns the bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// Returns the out-of-memory error, which lists the nodes that hold most memory.
    fn exhausted(&self, bytes: usize, description: &str) -> Error {
        let mut message = format!("OOM when allocating {description} on {}: {bytes} bytes", self.device);
        let state = self.state.lock();
        let mut by_node: FxHashMap<&str, u64> = FxHashMap::default();
        for allocation in state.allocations.values() {
            *by_node.entry(&allocation.node).or_default() += allocation.bytes;
        }
        let mut largest: Vec<(&str, u64)> = by_node.into_iter().collect();
        largest.sort_by_key(|&(node, bytes)| (std::cmp::Reverse(bytes), node));
        let _ = write!(message, ", with {} of {} in use", state.used, self.limit);
        for (i, (node, bytes)) in largest.iter().take(MAX_NAMED_HOLDERS).enumerate() {
            let before = if i == 0 { "; most is held by outputs of these nodes: " } else { ", " };
            let _ = write!(message, "{before}{node} ({bytes})");
        }
        Error::new(Code::ResourceExhausted, message)
    }
}
