//! Device memory of other processes that devices of this process can map.

use crate::device::DeviceMemory;
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::fs::File;
use std::sync::Arc;

/// The size in bytes from which tensors are sent through exported device buffers. Smaller tensors are sent through host
/// memory, because copying them to a shared buffer takes as long.
pub const MIN_SHARED_BYTES: usize = 1 << 18;

/// A buffer in the memory of another process's device.
#[derive(Debug)]
pub struct PeerBuffer {
    /// The file descriptor of the buffer, kept open because other devices may map the buffer later.
    descriptor: File,
    len: usize,
    /// The mappings: one for each device that has mapped the buffer or tried to.
    views: Mutex<Vec<Box<dyn PeerMapping>>>,
}

/// A device's mapping of a buffer, unmapped when dropped. Only the device that made it knows its concrete type.
pub trait PeerMapping: Any + Send + Sync + fmt::Debug {}

impl PeerBuffer {
    /// Creates a buffer of `len` bytes from its descriptor. No device maps it yet.
    pub fn new(descriptor: File, len: usize) -> Arc<PeerBuffer> {
        Arc::new(PeerBuffer { descriptor, len, views: Mutex::default() })
    }

    /// Returns the descriptor by which devices map the buffer.
    pub fn descriptor(&self) -> &File {
        &self.descriptor
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the first result of `find` over the buffer's mappings of type `V`. If `find` has no result for any
    /// mapping, `make` creates another one, and `find` is applied to the new mapping.
    ///
    /// # Errors
    /// Errors of `make`.
    pub fn view<V: PeerMapping, R, E>(
        &self,
        find: impl Fn(&V) -> Option<R>,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Option<R>, E> {
        let mut views = self.views.lock();
        let found_before = views.iter().find_map(|view| (&**view as &dyn Any).downcast_ref().and_then(&find));
        if found_before.is_some() {
            return Ok(found_before);
        }
        let view = make()?;
        let found = find(&view);
        views.push(Box::new(view));
        Ok(found)
    }
}

/// A borrowed buffer's connection to the process that owns the buffer; dropping the connection returns the buffer.
pub trait BufferBorrow: Send + Sync {
    /// Reports that the device cannot access the buffer, so that the owner shares no further buffers with the device.
    fn report_no_access(&self);
}

/// The memory of a tensor at the start of another process's buffer, which is borrowed until this object is dropped.
pub struct BorrowedMemory {
    window: Arc<PeerBuffer>,
    len: usize,
    loan: Box<dyn BufferBorrow>,
}

impl BorrowedMemory {
    /// Creates the memory of a tensor of `len` bytes at the start of `window`; `None` if the buffer is shorter.
    pub fn new(window: Arc<PeerBuffer>, len: usize, loan: Box<dyn BufferBorrow>) -> Option<BorrowedMemory> {
        (len <= window.len).then_some(BorrowedMemory { window, len, loan })
    }

    /// Returns `memory` as borrowed memory; `None` if it is a block of another type.
    pub fn of(memory: &dyn DeviceMemory) -> Option<&BorrowedMemory> {
        (memory as &dyn Any).downcast_ref()
    }

    /// Returns the borrowed buffer, at whose start the memory is.
    pub fn window(&self) -> &Arc<PeerBuffer> {
        &self.window
    }

    /// Reports to the process that owns the buffer that the device cannot access it.
    pub fn report_no_access(&self) {
        self.loan.report_no_access();
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
