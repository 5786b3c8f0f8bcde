//! The pool of pinned host memory for copies from and to a GPU. Blocks are kept for reuse, because pinning new
//! memory takes longer than most copies, even those of a whole model for a checkpoint. Where other processes of
//! the machine read large tensors in this process's memory, large blocks are shared memory, so that a peer
//! reads a GPU's result without another copy.

use super::driver::{Driver, PinnedMemory};
use device::Result;
use device::shared_memory;
use device::shared_memory::SharedMemory;
use graph::Tensor;
use graph::tensor::{LARGE, Region, available_memory, memory_limit};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The pool of pinned host memory of one GPU.
#[derive(Debug)]
pub(super) struct PinnedPool {
    driver: Arc<dyn Driver>,
    idle: Mutex<IdleBlocks>,
}

/// The blocks of a pool that are not in use.
#[derive(Debug)]
struct IdleBlocks {
    /// The idle blocks in the order in which they were returned.
    blocks: VecDeque<PinnedBlock>,
    bytes: usize,
    /// Largest number of idle bytes.
    limit: usize,
}

impl Default for IdleBlocks {
    fn default() -> IdleBlocks {
        IdleBlocks { blocks: VecDeque::new(), bytes: 0, limit: MIN_IDLE_LIMIT }
    }
}

/// A block of pinned memory.
#[derive(Debug, Default)]
struct PinnedBlock {
    pinned: PinnedMemory,
    /// The shared memory file that backs the block, if other processes may map it.
    shared: Option<SharedMemory>,
}

impl IdleBlocks {
    /// Removes and returns the most recently returned block of exactly `size` bytes.
    fn take(&mut self, size: usize) -> Option<PinnedBlock> {
        let at = self.blocks.iter().rposition(|block| block.pinned.len == size)?;
        self.remove(at)
    }

    /// Adds a block that is no longer in use, and returns the blocks to free because idle bytes exceed the
    /// limit: those returned longest ago.
    fn recycle(&mut self, block: PinnedBlock) -> Vec<PinnedBlock> {
        self.bytes += block.pinned.len;
        IDLE_BYTES.fetch_add(block.pinned.len, Ordering::Relaxed);
        self.blocks.push_back(block);
        let mut evicted = Vec::new();
        while self.bytes > self.limit
            && let Some(oldest) = self.remove(0)
        {
            evicted.push(oldest);
        }
        evicted
    }

    fn remove(&mut self, at: usize) -> Option<PinnedBlock> {
        let block = self.blocks.remove(at)?;
        self.bytes -= block.pinned.len;
        IDLE_BYTES.fetch_sub(block.pinned.len, Ordering::Relaxed);
        Some(block)
    }

    /// Updates the limit of idle bytes before a block of `more` bytes is added: the limit for all GPUs of the
    /// process, less the idle bytes of the other GPUs.
    fn update_limit(&mut self, more: usize) {
        if self.bytes + more <= MIN_IDLE_LIMIT {
            return;
        }
        let share = memory_limit().min(available_memory().unwrap_or(u64::MAX)) / IDLE_DIVISOR;
        let share = usize::try_from(share).unwrap_or(usize::MAX);
        let others = IDLE_BYTES.load(Ordering::Relaxed).saturating_sub(self.bytes);
        self.limit = share.saturating_sub(others).max(MIN_IDLE_LIMIT);
    }
}

/// Number of idle bytes that the pool of each GPU may always keep.
const MIN_IDLE_LIMIT: usize = 1 << 30;

/// Idle blocks of all GPUs of the process together may use at most the process's tensor memory limit or the
/// machine's available memory, whichever is smaller, divided by this number. Blocks beyond this limit are
/// freed, because other processes need memory too.
const IDLE_DIVISOR: u64 = 8;

/// Idle bytes of all GPUs of the process.
static IDLE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Size of a memory page in bytes. Block sizes are multiples of a page.
const PAGE: usize = 4096;

/// The sizes of blocks larger than this are multiples of a sixteenth of the next power of two, because rounding
/// to a power of two would waste memory that other processes could use.
const MAX_POWER_OF_TWO: usize = 64 << 20;

/// Returns the size of a block for `len` bytes. There are few sizes, so that blocks are reused.
fn size_of_block(len: usize) -> usize {
    match len.max(PAGE).checked_next_power_of_two() {
        Some(power) if power > MAX_POWER_OF_TWO => len.next_multiple_of(power / 16),
        Some(power) => power,
        None => len,
    }
}

impl PinnedPool {
    /// Returns an empty pool.
    pub(super) fn new(driver: Arc<dyn Driver>) -> Arc<PinnedPool> {
        Arc::new(PinnedPool { driver, idle: Mutex::default() })
    }

    /// Takes a block for `len` bytes, greater than 0; the content is arbitrary.
    pub(super) fn take(self: &Arc<PinnedPool>, len: usize) -> Result<PinnedBuffer> {
        let size = size_of_block(len);
        let idle = self.idle.lock().take(size);
        let block = match idle {
            Some(block) => block,
            None => match self.allocate_shareable(size) {
                Some(block) => block,
                None => PinnedBlock { pinned: self.driver.allocate_pinned(size)?, shared: None },
            },
        };
        Ok(PinnedBuffer { block, len, pool: self.clone() })
    }

    /// Allocates a block that other processes can map, if the block is large, a sharing transport is installed,
    /// and the system can allocate and pin the memory.
    fn allocate_shareable(&self, size: usize) -> Option<PinnedBlock> {
        if size < LARGE || !shared_memory::is_installed() {
            return None;
        }
        let mut memory = SharedMemory::new(size).ok()?;
        let pinned = PinnedMemory { address: memory.bytes_mut()?.as_mut_ptr() as usize, len: size };
        self.driver
            .pin(pinned)
            .inspect_err(|error| tracing::debug!("shared memory cannot be pinned: {error}"))
            .ok()?;
        Some(PinnedBlock { pinned, shared: Some(memory) })
    }

    /// Returns a block to the pool, within the limit of idle bytes.
    fn recycle(&self, block: PinnedBlock) {
        let mut idle = self.idle.lock();
        // Small blocks are returned in each step, so the machine's available memory is queried for large blocks
        // only.
        if block.pinned.len >= LARGE {
            idle.update_limit(block.pinned.len);
        }
        let evicted = idle.recycle(block);
        drop(idle);
        evicted.into_iter().for_each(|block| self.free(block));
    }

    fn free(&self, block: PinnedBlock) {
        match block.shared {
            Some(memory) => {
                self.driver.unpin(block.pinned);
                drop(memory);
            }
            None => self.driver.free_pinned(block.pinned),
        }
    }
}

impl Drop for PinnedPool {
    fn drop(&mut self) {
        while let Some(block) = self.idle.get_mut().remove(0) {
            self.free(block);
        }
    }
}

/// A block of pinned memory in use. It must not be dropped before the GPU has finished its copy.
#[derive(Debug)]
pub(super) struct PinnedBuffer {
    block: PinnedBlock,
    len: usize,
    pool: Arc<PinnedPool>,
}

impl PinnedBuffer {
    /// Returns whether a tensor's elements are in pinned memory of this process.
    pub(super) fn is_pinned(tensor: &Tensor) -> bool {
        let Some(buffer) = tensor.buffer() else { return false };
        buffer.region().is_some_and(|region| (region as &dyn Any).is::<PinnedBuffer>())
    }

    pub(super) fn memory(&self) -> PinnedMemory {
        PinnedMemory { len: self.len, ..self.block.pinned }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the block has at least `len` bytes, which the allocation initialised, and no other owner.
        unsafe { std::slice::from_raw_parts_mut(self.block.pinned.address as *mut u8, self.len) }
    }
}

/// The buffer of a tensor: the tensor's elements stay in pinned memory for as long as the tensor lives.
impl Region for PinnedBuffer {
    fn bytes(&self) -> &[u8] {
        // SAFETY: as in `as_mut_slice`; the GPU's copy has ended before the buffer becomes a tensor.
        unsafe { std::slice::from_raw_parts(self.block.pinned.address as *const u8, self.len) }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.is_writable() { Some(self.as_mut_slice()) } else { None }
    }

    fn is_writable(&self) -> bool {
        self.block.shared.as_ref().is_none_or(Region::is_writable)
    }

    fn block(&self) -> Option<(&dyn Region, usize)> {
        self.block.shared.as_ref().map(|memory| (memory as &dyn Region, 0))
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let block = std::mem::take(&mut self.block);
        // A block is freed and not reused if other processes may still read it without reporting the end of the
        // read.
        if block.shared.as_ref().is_some_and(|memory| !memory.is_writable()) {
            return self.pool.free(block);
        }
        self.pool.recycle(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_are_few_and_large_blocks_waste_little() {
        let sizes = [1, PAGE + 1, MAX_POWER_OF_TWO, MAX_POWER_OF_TWO + 1, 100 << 20, (5 << 30) + 1]
            .map(size_of_block);
        assert_eq!(sizes, [PAGE, 2 * PAGE, MAX_POWER_OF_TWO, 72 << 20, 104 << 20, (5 << 30) + (512 << 20)]);
    }

    #[test]
    fn least_recently_used_blocks_are_freed() {
        const LIMIT: usize = 1 << 20;
        let block =
            |address: usize, len: usize| PinnedBlock { pinned: PinnedMemory { address, len }, shared: None };
        let address = |block: &PinnedBlock| block.pinned.address;
        let mut idle = IdleBlocks { limit: LIMIT, ..IdleBlocks::default() };
        assert!(idle.recycle(block(1, LIMIT / 2)).is_empty());
        assert!(idle.recycle(block(2, PAGE)).is_empty());
        assert!(idle.recycle(block(3, PAGE)).is_empty());
        assert_eq!(idle.take(PAGE).as_ref().map(address), Some(3));
        let evicted: Vec<usize> = idle.recycle(block(4, LIMIT / 2)).iter().map(address).collect();
        assert_eq!((evicted, idle.bytes), (vec![1], LIMIT / 2 + PAGE));
        assert_eq!(idle.take(LIMIT / 2).as_ref().map(address), Some(4));
        // A block larger than the limit is evicted at once.
        let evicted: Vec<usize> = idle.recycle(block(5, 2 * LIMIT)).iter().map(address).collect();
        assert_eq!((evicted, idle.bytes, idle.take(PAGE).is_none()), (vec![2, 5], 0, true));
    }
}
