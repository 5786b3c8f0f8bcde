//! Memory of the host that a GPU copies from and to by itself, kept for reuse: to pin fresh memory takes longer than
//! most copies, those of a whole model for a checkpoint among them. Where other processes of the machine read large tensors
//! in this one's memory, large blocks are such memory, so that what a GPU made is read where its copy ended.

use super::driver::{Driver, Pinned};
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

/// Pinned memory that nobody uses.
#[derive(Debug)]
pub(super) struct PinnedPool {
    driver: Arc<dyn Driver>,
    idle: Mutex<Idle>,
}

#[derive(Debug)]
struct Idle {
    /// In the order in which they were given back.
    blocks: VecDeque<Block>,
    bytes: usize,
    /// There are no more bytes than these.
    most: usize,
}

impl Default for Idle {
    fn default() -> Idle {
        Idle { blocks: VecDeque::new(), bytes: 0, most: LEAST_KEPT }
    }
}

#[derive(Debug, Default)]
struct Block {
    pinned: Pinned,
    /// Where it lies, if others may read it.
    shared: Option<SharedMemory>,
}

impl Idle {
    /// One of this size: the last that was used.
    fn take(&mut self, size: usize) -> Option<Block> {
        let at = self.blocks.iter().rposition(|block| block.pinned.len == size)?;
        self.remove(at)
    }

    /// Those that were not used for longest make room, if these are too many bytes.
    fn give_back(&mut self, block: Block) -> Vec<Block> {
        self.bytes += block.pinned.len;
        IDLE.fetch_add(block.pinned.len, Ordering::Relaxed);
        self.blocks.push_back(block);
        let mut beyond = Vec::new();
        while self.bytes > self.most
            && let Some(oldest) = self.remove(0)
        {
            beyond.push(oldest);
        }
        beyond
    }

    fn remove(&mut self, at: usize) -> Option<Block> {
        let block = self.blocks.remove(at)?;
        self.bytes -= block.pinned.len;
        IDLE.fetch_sub(block.pinned.len, Ordering::Relaxed);
        Some(block)
    }

    /// Looks how many bytes may be idle, if there are to be so many more: what other GPUs leave of the process's share.
    fn measure(&mut self, more: usize) {
        if self.bytes + more <= LEAST_KEPT {
            return;
        }
        let share = memory_limit().min(available_memory().unwrap_or(u64::MAX)) / SHARE_KEPT;
        let share = usize::try_from(share).unwrap_or(usize::MAX);
        let others = IDLE.load(Ordering::Relaxed).saturating_sub(self.bytes);
        self.most = share.saturating_sub(others).max(LEAST_KEPT);
    }
}

/// Idle memory of a GPU up to this is kept in any case.
const LEAST_KEPT: usize = 1 << 30;

/// All GPUs of the process keep this part of the memory that tensors may take, and of what the machine has left: there
/// are other processes. What is beyond is the system's again.
const SHARE_KEPT: u64 = 8;

/// Idle bytes of all GPUs of the process.
static IDLE: AtomicUsize = AtomicUsize::new(0);

/// Blocks are of whole pages.
const PAGE: usize = 4096;

/// Larger blocks are of sixteenths of the next power of two: so much of what others could use is not to be had for nothing.
const WHOLE: usize = 64 << 20;

/// The size of a block for so many bytes: few sizes, so that blocks are used again.
fn size_of_block(len: usize) -> usize {
    match len.max(PAGE).checked_next_power_of_two() {
        Some(power) if power > WHOLE => len.next_multiple_of(power / 16),
        Some(power) => power,
        None => len,
    }
}

impl PinnedPool {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Arc<PinnedPool> {
        Arc::new(PinnedPool { driver, idle: Mutex::default() })
    }

    /// `len` bytes, more than none, of whatever was there.
    pub(super) fn take(self: &Arc<PinnedPool>, len: usize) -> Result<PinnedBuffer> {
        let size = size_of_block(len);
        let idle = self.idle.lock().take(size);
        let block = match idle {
            Some(block) => block,
            None => match self.shareable(size) {
                Some(block) => block,
                None => Block { pinned: self.driver.allocate_pinned(size)?, shared: None },
            },
        };
        Ok(PinnedBuffer { block, len, pool: self.clone() })
    }

    /// Memory that others can read, if there is to be such, and the system gives and pins it.
    fn shareable(&self, size: usize) -> Option<Block> {
        if size < LARGE || !shared_memory::is_installed() {
            return None;
        }
        let mut memory = SharedMemory::new(size).ok()?;
        let pinned = Pinned { address: memory.bytes_mut()?.as_mut_ptr() as usize, len: size };
        self.driver
            .pin(pinned)
            .inspect_err(|error| tracing::debug!("what GPUs give is copied for other processes: {error}"))
            .ok()?;
        Some(Block { pinned, shared: Some(memory) })
    }

    /// Keeps a block for who asks next, as far as there is to be so much idle memory.
    fn give_back(&self, block: Block) {
        let mut idle = self.idle.lock();
        // Small blocks come and go with every step: what the machine has left is not asked for them.
        if block.pinned.len >= LARGE {
            idle.measure(block.pinned.len);
        }
        let beyond = idle.give_back(block);
        drop(idle);
        beyond.into_iter().for_each(|block| self.free(block));
    }

    fn free(&self, block: Block) {
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

/// A block of pinned memory. The GPU must have done with it before it is dropped.
#[derive(Debug)]
pub(super) struct PinnedBuffer {
    block: Block,
    len: usize,
    pool: Arc<PinnedPool>,
}

impl PinnedBuffer {
    /// Whether a tensor's elements lie in such memory of this process.
    pub(super) fn holds(tensor: &Tensor) -> bool {
        let Some(buffer) = tensor.buffer() else { return false };
        buffer.region().is_some_and(|region| (region as &dyn Any).is::<PinnedBuffer>())
    }

    pub(super) fn memory(&self) -> Pinned {
        Pinned { len: self.len, ..self.block.pinned }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the block is of at least `len` bytes, initialised by whoever allocated it, and this value's own.
        unsafe { std::slice::from_raw_parts_mut(self.block.pinned.address as *mut u8, self.len) }
    }
}

/// A tensor may lie in pinned memory for as long as it lives.
impl Region for PinnedBuffer {
    fn bytes(&self) -> &[u8] {
        // SAFETY: as in `as_mut_slice`; the GPU has done with it before a tensor is made of it.
        unsafe { std::slice::from_raw_parts(self.block.pinned.address as *const u8, self.len) }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.is_writable() { Some(self.as_mut_slice()) } else { None }
    }

    fn is_writable(&self) -> bool {
        self.block.shared.as_ref().is_none_or(Region::is_writable)
    }

    fn block(&self) -> Option<&dyn Region> {
        self.block.shared.as_ref().map(|memory| memory as &dyn Region)
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let block = std::mem::take(&mut self.block);
        // What others read, without saying until when, is not written again.
        if block.shared.as_ref().is_some_and(|memory| !memory.is_writable()) {
            return self.pool.free(block);
        }
        self.pool.give_back(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_of_few_sizes_and_large_ones_little_larger_than_what_is_in_them() {
        let sizes = [1, PAGE + 1, WHOLE, WHOLE + 1, 100 << 20, (5 << 30) + 1].map(size_of_block);
        assert_eq!(sizes, [PAGE, 2 * PAGE, WHOLE, 72 << 20, 104 << 20, (5 << 30) + (512 << 20)]);
    }

    #[test]
    fn memory_that_was_not_used_for_longest_makes_room() {
        const MOST: usize = 1 << 20;
        let block = |address: usize, len: usize| Block { pinned: Pinned { address, len }, shared: None };
        let address = |block: &Block| block.pinned.address;
        let mut idle = Idle { most: MOST, ..Idle::default() };
        assert!(idle.give_back(block(1, MOST / 2)).is_empty());
        assert!(idle.give_back(block(2, PAGE)).is_empty());
        assert!(idle.give_back(block(3, PAGE)).is_empty());
        assert_eq!(idle.take(PAGE).as_ref().map(address), Some(3));
        let beyond: Vec<usize> = idle.give_back(block(4, MOST / 2)).iter().map(address).collect();
        assert_eq!((beyond, idle.bytes), (vec![1], MOST / 2 + PAGE));
        assert_eq!(idle.take(MOST / 2).as_ref().map(address), Some(4));
        // More than may be kept is not.
        let beyond: Vec<usize> = idle.give_back(block(5, 2 * MOST)).iter().map(address).collect();
        assert_eq!((beyond, idle.bytes, idle.take(PAGE).is_none()), (vec![2, 5], 0, true));
    }
}
