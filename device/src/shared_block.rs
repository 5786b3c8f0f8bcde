//! Shared blocks: memory that other processes of this machine may map, and the state by which its owner tracks the
//! sharing.

use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Memory that another process can map by a descriptor. The memory is freed when no process uses it any more.
pub trait SharedBlock: Send + Sync + fmt::Debug {
    /// Returns the block's sharing state.
    fn sharing(&self) -> &Sharing;

    /// Returns the size in bytes.
    fn len(&self) -> usize;

    /// Returns whether the block has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a descriptor by which another process can map the block.
    ///
    /// # Errors
    /// Errors of the system, and `QuotaExceeded` if there are too many blocks.
    fn descriptor(&self) -> io::Result<OwnedFd>;

    /// Returns whether the block is in host or device memory.
    fn memory_kind(&self) -> MemoryKind;
}

/// The memory that a block is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The machine's main memory.
    Host,
    /// The memory of a device that has its own, such as a GPU.
    Device,
}

/// A listener that is notified when a block is freed that was shared with another process.
pub trait FreeListener: Send + Sync {
    /// Called with the number of the block, which has just been freed.
    fn freed(&self, id: u64);
}

/// The sharing state of a block: its number, its listeners, and whether it is read-only.
pub struct Sharing {
    id: u64,
    listeners: Mutex<Vec<Weak<dyn FreeListener>>>,
    is_read_only: AtomicBool,
}

impl Default for Sharing {
    fn default() -> Self {
        Self::new()
    }
}

impl Sharing {
    /// Creates the state of a block that is not shared, with a new number.
    pub fn new() -> Sharing {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Sharing { id, listeners: Mutex::default(), is_read_only: AtomicBool::new(false) }
    }

    /// Returns the block's number, which is unique in this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Adds a listener that is called when the block is freed.
    pub fn tell(&self, listener: Weak<dyn FreeListener>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    /// Returns whether a listener is registered, so that other processes may have mapped the block.
    pub fn is_known(&self) -> bool {
        self.listeners.lock().iter().any(|listener| listener.strong_count() > 0)
    }

    /// Makes the block read-only for ever, because another process reads it and will not report when it has finished.
    pub fn set_read_only(&self) {
        self.is_read_only.store(true, Ordering::Release);
    }

    /// Returns whether the block is read-only.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Acquire)
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        for listener in self.listeners.get_mut().drain(..).filter_map(|listener| listener.upgrade()) {
            listener.freed(self.id);
        }
    }
}

impl fmt::Debug for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sharing({})", self.id)
    }
}
