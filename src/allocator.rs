//! What servers ask of mimalloc, which their programs allocate with.

/// Gives all freed memory back to the system. By itself mimalloc does so a while later, when next memory is freed: in a
/// process that has come to rest, that would be never.
#[allow(unsafe_code)]
pub(crate) fn give_back() {
    // SAFETY: it takes no pointer, any thread may call it at any time, and in a program with another allocator it finds
    // nothing to do.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
