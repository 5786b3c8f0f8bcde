//! Memory of other processes' devices, which devices of this one see.

use crate::device::DeviceMemory;
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::fs::File;
use std::sync::Arc;

/// Smaller tensors go by the host, bytes: to bring them where others see them takes as long.
pub const LEAST: usize = 1 << 18;

/// A block of another process's device.
#[derive(Debug)]
pub struct PeerWindow {
    /// Kept, for other devices may look later.
    descriptor: File,
    len: usize,
    /// One for each device that has looked.
    views: Mutex<Vec<Box<dyn View>>>,
}

/// How a device sees a window, until it is dropped: known in full only to the device that made it.
pub trait View: Any + Send + Sync + fmt::Debug {}

impl PeerWindow {
    /// A block of so many bytes by its descriptor. Nothing is looked at yet.
    pub fn new(descriptor: File, len: usize) -> Arc<PeerWindow> {
        Arc::new(PeerWindow { descriptor, len, views: Mutex::default() })
    }

    pub fn descriptor(&self) -> &File {
        &self.descriptor
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What `find` finds among the views of one kind; one more is made where it finds nothing.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn view<V: View, R, E>(
        &self,
        find: impl Fn(&V) -> Option<R>,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Option<R>, E> {
        let mut views = self.views.lock();
        let known = views.iter().find_map(|view| (&**view as &dyn Any).downcast_ref().and_then(&find));
        if known.is_some() {
            return Ok(known);
        }
        let view = make()?;
        let found = find(&view);
        views.push(Box::new(view));
        Ok(found)
    }
}

/// What lender and borrower have agreed on: dropped, it returns what was lent.
pub trait Loan: Send + Sync {
    /// The device cannot look into the window after all: its lender is to lend it nothing more.
    fn tell_unseen(&self);
}

/// A tensor's memory in a window, from its beginning on: lent until it is dropped.
pub struct BorrowedMemory {
    window: Arc<PeerWindow>,
    len: usize,
    loan: Box<dyn Loan>,
}

impl BorrowedMemory {
    /// `None` if the window is shorter.
    pub fn new(window: Arc<PeerWindow>, len: usize, loan: Box<dyn Loan>) -> Option<BorrowedMemory> {
        (len <= window.len).then_some(BorrowedMemory { window, len, loan })
    }

    /// The memory behind a tensor, if it is such.
    pub fn of(memory: &dyn DeviceMemory) -> Option<&BorrowedMemory> {
        (memory as &dyn Any).downcast_ref()
    }

    pub fn window(&self) -> &Arc<PeerWindow> {
        &self.window
    }

    /// Tells the lender that the device cannot look into the window.
    pub fn tell_unseen(&self) {
        self.loan.tell_unseen();
    }
}

impl DeviceMemory for BorrowedMemory {
    fn len(&self) -> usize {
        self.len
    }
}

impl fmt::Debug for BorrowedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BorrowedMemory({} bytes of {:?})", self.len, self.window)
    }
}
