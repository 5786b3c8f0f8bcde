//! Memory of the host that a GPU copies from and to by itself, kept for reuse: to pin fresh memory takes longer than
//! most copies.

use super::driver::{Driver, Pinned};
use crate::error::Result;
use graph::Tensor;
use graph::tensor::Region;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

/// Pinned memory that nobody uses.
#[derive(Debug)]
pub(super) struct PinnedPool {
    driver: Arc<dyn Driver>,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// In the order in which they were given back.
    blocks: VecDeque<Pinned>,
    bytes: usize,
}

impl Idle {
    /// One of this size: the last that was used.
    fn take(&mut self, size: usize) -> Option<Pinned> {
        let at = self.blocks.iter().rposition(|block| block.len == size)?;
        self.bytes -= size;
        self.blocks.remove(at)
    }

    /// Those that were not used for longest make room.
    fn give_back(&mut self, block: Pinned) -> Vec<Pinned> {
        self.bytes += block.len;
        self.blocks.push_back(block);
        let mut beyond = Vec::new();
        while self.bytes > KEPT
            && let Some(oldest) = self.blocks.pop_front()
        {
            self.bytes -= oldest.len;
            beyond.push(oldest);
        }
        beyond
    }
}

/// Idle memory beyond this is the system's again.
const KEPT: usize = 1 << 30;

/// Blocks are of whole pages.
const PAGE: usize = 4096;

impl PinnedPool {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Arc<PinnedPool> {
        Arc::new(PinnedPool { driver, idle: Mutex::default() })
    }

    /// `len` bytes, more than none, of whatever was there.
    pub(super) fn take(self: &Arc<PinnedPool>, len: usize) -> Result<PinnedBuffer> {
        let size = len.max(PAGE).checked_next_power_of_two().unwrap_or(len);
        let idle = self.idle.lock().take(size);
        let block = match idle {
            Some(block) => block,
            None => self.driver.allocate_pinned(size)?,
        };
        Ok(PinnedBuffer { block, len, pool: self.clone() })
    }
}

impl Drop for PinnedPool {
    fn drop(&mut self) {
        for block in &self.idle.get_mut().blocks {
            self.driver.free_pinned(*block);
        }
    }
}

/// A block of pinned memory. The GPU must have done with it before it is dropped.
#[derive(Debug)]
pub(super) struct PinnedBuffer {
    block: Pinned,
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
        Pinned { len: self.len, ..self.block }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the block is of at least `len` bytes, initialised by whoever allocated it, and this value's own.
        unsafe { std::slice::from_raw_parts_mut(self.block.address as *mut u8, self.len) }
    }
}

/// A tensor may lie in pinned memory for as long as it lives.
impl Region for PinnedBuffer {
    fn bytes(&self) -> &[u8] {
        // SAFETY: as in `as_mut_slice`; the GPU has done with it before a tensor is made of it.
        unsafe { std::slice::from_raw_parts(self.block.address as *const u8, self.len) }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(self.as_mut_slice())
    }

    fn is_writable(&self) -> bool {
        true
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let beyond = self.pool.idle.lock().give_back(self.block);
        for block in beyond {
            self.pool.driver.free_pinned(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_not_used_for_longest_makes_room() {
        let block = |address: usize, len: usize| Pinned { address, len };
        let mut idle = Idle::default();
        assert!(idle.give_back(block(1, KEPT / 2)).is_empty());
        assert!(idle.give_back(block(2, PAGE)).is_empty());
        assert!(idle.give_back(block(3, PAGE)).is_empty());
        assert_eq!(idle.take(PAGE).map(|block| block.address), Some(3));
        let beyond: Vec<usize> = idle.give_back(block(4, KEPT / 2)).iter().map(|b| b.address).collect();
        assert_eq!((beyond, idle.bytes), (vec![1], KEPT / 2 + PAGE));
        assert_eq!(idle.take(KEPT / 2).map(|block| block.address), Some(4));
        // More than may be kept is not.
        let beyond: Vec<usize> = idle.give_back(block(5, 2 * KEPT)).iter().map(|b| b.address).collect();
        assert_eq!((beyond, idle.bytes, idle.take(PAGE).is_none()), (vec![2, 5], 0, true));
    }
}
