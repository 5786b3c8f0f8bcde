//! Memory that NVIDIA's libraries compute products in.

use std::ffi::c_void;

/// One library's, whose products all run in one stream: captured ones find it where it was, and take none themselves.
#[derive(Debug)]
pub(super) struct Workspace {
    address: u64,
    bytes: usize,
}

impl Workspace {
    /// In this thread's context, as much as NVIDIA recommends for the architecture; `None` if that is not there.
    pub(super) fn new(architecture: u32) -> Option<Workspace> {
        let bytes = if architecture >= 90 { 32 << 20 } else { 4 << 20 };
        // SAFETY: memory in this thread's context, given back when this value is dropped.
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
        // SAFETY: nobody uses it any more.
        let _ = unsafe { cudarc::driver::result::free_sync(self.address) };
    }
}
