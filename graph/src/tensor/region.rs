//! Memory that buffers have from elsewhere: from a source that the process names, or from another process.

use std::any::Any;
use std::sync::OnceLock;

/// A block of memory, aligned to [`ALIGNMENT`](super::ALIGNMENT).
pub trait Region: Any + Send + Sync {
    fn bytes(&self) -> &[u8];

    /// For writing; `None` where it can only be read.
    fn bytes_mut(&mut self) -> Option<&mut [u8]>;

    /// Whether there is anything for writing.
    fn is_writable(&self) -> bool;

    /// The block whose first bytes these are, where that is another.
    fn block(&self) -> Option<&dyn Region> {
        None
    }
}

/// Gives so many bytes of zeros, or `None` if the buffer is to have common memory.
pub type LargeMemory = fn(usize, Use) -> Option<Box<dyn Region>>;

/// What new memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// All of it is about to be written.
    Writing,
    /// It stands for zeros, and may stay untouched: what nobody writes should take no memory.
    Zeros,
}

static SOURCE: OnceLock<LargeMemory> = OnceLock::new();

/// Names the source of memory for large buffers from now on; the first word holds.
pub fn set_large_memory(source: LargeMemory) {
    let _ = SOURCE.set(source);
}

pub(super) fn large_memory(len: usize, what_for: Use) -> Option<Box<dyn Region>> {
    SOURCE.get().and_then(|source| source(len, what_for)).filter(|region| region.bytes().len() == len)
}
