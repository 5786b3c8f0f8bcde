//! Regions: memory for buffers that does not come from the allocator, but from another process or from the function set
//! by [`set_large_memory`].

use std::any::Any;
use std::sync::OnceLock;

/// A region of memory, aligned to [`ALIGNMENT`](super::ALIGNMENT).
pub trait Region: Any + Send + Sync {
    /// Returns the bytes.
    fn bytes(&self) -> &[u8];

    /// Returns the bytes for writing; `None` if the region is read-only.
    fn bytes_mut(&mut self) -> Option<&mut [u8]>;

    /// Returns whether the region can be written.
    fn is_writable(&self) -> bool;

    /// Returns the larger region of which this region is a part, and the position of its first byte there; `None` if there
    /// is no such region.
    fn block(&self) -> Option<(&dyn Region, usize)> {
        None
    }
}

/// A function that supplies memory for large buffers: it takes a size in bytes, and returns a region of zeros of that
/// size, or `None` if the buffer is to use ordinary memory.
pub type LargeMemorySource = fn(usize, Use) -> Option<Box<dyn Region>>;

/// The purpose of newly allocated memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// All bytes are going to be written, so their initial values do not matter.
    Writing,
    /// The bytes must be zero, and some may never be written, so untouched pages should not use physical memory.
    Zeros,
}

static SOURCE: OnceLock<LargeMemorySource> = OnceLock::new();

/// Sets the function that supplies memory for large buffers. Only the first call has an effect.
pub fn set_large_memory(source: LargeMemorySource) {
    let _ = SOURCE.set(source);
}

/// Returns a region of exactly `len` bytes from the function set by [`set_large_memory`], if it supplies one.
pub(super) fn large_memory(len: usize, purpose: Use) -> Option<Box<dyn Region>> {
    SOURCE.get().and_then(|source| source(len, purpose)).filter(|region| region.bytes().len() == len)
}
