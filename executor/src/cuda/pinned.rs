//! Memory of the host that a GPU copies from and to by itself, kept for reuse: to pin fresh memory takes longer than
//! most copies.

use super::driver::{Driver, Pinned};
use crate::error::Result;
use graph::tensor::Region;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Pinned memory that nobody uses, by size.
#[derive(Debug)]
pub(super) struct PinnedPool {
    driver: Arc<dyn Driver>,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    blocks: BTreeMap<usize, Vec<Pinned>>,
    bytes: usize,
}

/// Idle memory beyond this is given back.
const KEPT: usize = 256 << 20;

/// Blocks are of whole pages.
const PAGE: usize = 4096;

impl PinnedPool {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Arc<PinnedPool> {
        Arc::new(PinnedPool { driver, idle: Mutex::default() })
    }

    /// `len` bytes, more than none, of whatever was there.
    pub(super) fn take(self: &Arc<PinnedPool>, len: usize) -> Result<PinnedBuffer> {
        let size = len.max(PAGE).checked_next_power_of_two().unwrap_or(len);
        let idle = {
            let mut idle = self.idle.lock();
            let found = idle.blocks.get_mut(&size).and_then(Vec::pop);
            idle.bytes -= found.map_or(0, |block| block.len);
            found
        };
        let block = match idle {
            Some(block) => block,
            None => self.driver.allocate_pinned(size)?,
        };
        Ok(PinnedBuffer { block, len, pool: self.clone() })
    }
}

impl Drop for PinnedPool {
    fn drop(&mut self) {
        for block in self.idle.get_mut().blocks.values().flatten() {
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
        let mut idle = self.pool.idle.lock();
        if idle.bytes + self.block.len <= KEPT {
            idle.bytes += self.block.len;
            idle.blocks.entry(self.block.len).or_default().push(self.block);
            return;
        }
        drop(idle);
        self.pool.driver.free_pinned(self.block);
    }
}
