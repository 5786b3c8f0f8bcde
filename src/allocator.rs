//! Calls into mimalloc, the allocator of the server programs.

/// Returns all freed memory to the system. mimalloc itself returns memory only at a later free, which would never
/// happen in an idle process.
#[allow(unsafe_code)]
pub(crate) fn trim_memory() {
    // SAFETY: `mi_collect` takes no pointer and may be called by any thread at any time; in a program with
    // another allocator it has no memory to collect.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
