//! The workspace of NVIDIA's libraries for matrix products.

use std::ffi::c_void;

/// The workspace of one library, whose products all run in one stream. Its address never changes, so captured
/// products can use it without allocating.
#[derive(Debug)]
pub(super) struct Workspace {
    address: u64,
    bytes: usize,
}

impl Workspace {
    /// Allocates a workspace of the size that NVIDIA recommends for the architecture, in this thread's context;
    /// returns `None` if there is not enough memory.
    pub(super) fn new(architecture: u32) -> Option<Workspace> {
        let bytes = if architecture >= 90 { 32 << 20 } else { 4 << 20 };
        // SAFETY: the memory belongs to this thread's context and is freed when this value is dropped.
        let address = unsafe { cudarc::driver::result::malloc_sync(bytes) }.ok()?;
        Some(Workspace { address, bytes })
    }

    pub(super) fn address(&self) -> *mut c_void {
        self.address as *mut c_void
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // SAFETY: the memory has no other users.
        let _ = unsafe { cudarc::driver::result::free_sync(self.address) };
    }
}
