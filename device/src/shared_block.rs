//! Blocks of memory that other processes of this machine read where they are: what their owner must know of that.

use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Memory that another process can be given a descriptor of. It stays while one of both has it.
pub trait SharedBlock: Send + Sync + fmt::Debug {
    fn sharing(&self) -> &Sharing;

    /// Bytes.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// To be given to another process, which reads the block by it.
    ///
    /// # Errors
    /// What the system says, and that there are too many blocks.
    fn descriptor(&self) -> io::Result<OwnedFd>;

    /// Where it is.
    fn place(&self) -> Place;
}

/// Whose memory a block is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Host,
    /// A device's with memory of its own.
    Device,
}

/// Who gave a block's descriptor away, and wants to know when the block is no more.
pub trait Freed: Send + Sync {
    fn freed(&self, id: u64);
}

/// Who knows a block.
pub struct Sharing {
    id: u64,
    told: Mutex<Vec<Weak<dyn Freed>>>,
    given_up: AtomicBool,
}

impl Default for Sharing {
    fn default() -> Self {
        Self::new()
    }
}

impl Sharing {
    pub fn new() -> Sharing {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Sharing { id, told: Mutex::default(), given_up: AtomicBool::new(false) }
    }

    /// The block's number: no other of this process has had it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whom to tell when the block is freed.
    pub fn tell(&self, who: Weak<dyn Freed>) {
        let mut told = self.told.lock();
        told.retain(|who| who.strong_count() > 0);
        told.push(who);
    }

    /// Whether anybody wants to be told: others may have the block.
    pub fn is_known(&self) -> bool {
        self.told.lock().iter().any(|who| who.strong_count() > 0)
    }

    /// Others read the block, and nobody will say when they have ended: it is never written again.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        for who in self.told.get_mut().drain(..).filter_map(|who| who.upgrade()) {
            who.freed(self.id);
        }
    }
}

impl fmt::Debug for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sharing({})", self.id)
    }
}
