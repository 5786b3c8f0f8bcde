//! Memory of a GPU in which GPUs of other processes of the machine see what is lent to them; and theirs, in which this one
//! sees. A tensor that is lent is copied into a window, which takes a GPU next to nothing: so tensors themselves lie in
//! memory that streams order, and nobody waits for a borrower before he changes one.

use super::driver::{Address, Driver, Shared};
use super::engine::{Engine, block_of};
use super::memory::Block;
use super::pool::Pool;
use super::streams::{Mark, Stream};
use device::shared_block::{Place, SharedBlock, Sharing};
use device::value::Value;
use device::window::{BorrowedMemory, PeerWindow, View};
use device::{DeviceTensor, Transfer};
use device::{Error, Result};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Windows are of at least so many bytes, and of a power of two: what GPUs give such memory in.
const LEAST: usize = 2 << 20;

/// Windows take at most this share of the GPU's limit: the rest is for kernels.
const SHARE: u64 = 8;

/// Who has borrowed a window and hears that it is no more gives it up within this time.
const PARTING: Duration = Duration::from_secs(1);

/// Between looks for whether he has.
const PAUSE: Duration = Duration::from_millis(1);

/// Where there was no memory for a window, none is tried for so long.
const FULL: Duration = Duration::from_secs(1);

/// Who holds the memory of windows, in messages.
const HOLDER: &str = "tensors that are lent to other processes";

/// A block of this process's GPU that others may see.
#[derive(Debug)]
pub(super) struct Window {
    sharing: Sharing,
    shared: Shared,
    len: usize,
    driver: Arc<dyn Driver>,
}

impl SharedBlock for Window {
    fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    fn len(&self) -> usize {
        self.len
    }

    fn descriptor(&self) -> io::Result<OwnedFd> {
        self.shared.descriptor.try_clone()
    }

    fn place(&self) -> Place {
        Place::Device
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.driver.unmap(self.shared.address, self.len);
    }
}

/// A GPU's windows.
#[derive(Debug, Default)]
pub(super) struct Windows(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Those that nobody uses, in the order in which they were given back.
    idle: VecDeque<Window>,
    /// Of all that are open.
    bytes: u64,
    /// When one was closed last that others knew: they have its memory for a moment longer.
    closed: Option<Instant>,
    /// When there was no memory for one, and of what size.
    full: Option<(Instant, usize)>,
}

impl Windows {
    /// When others will have let go of the memory of windows that were closed, if any were.
    pub(super) fn let_go_of(&self) -> Option<Instant> {
        Some(self.0.lock().closed? + PARTING)
    }

    fn is_full(&self, size: usize) -> bool {
        self.0.lock().full.is_some_and(|(at, least)| size >= least && at.elapsed() < FULL)
    }
}

/// Waits a little, unless that time has come; whether it has not. A thread that was lent does not wait: it may be the one that
/// is to bring what others wait for, or what is waited for here.
pub(super) fn wait_before(time: Instant) -> bool {
    let waits = !device::Pool::is_of_others() && Instant::now() < time;
    if waits {
        std::thread::park_timeout(PAUSE);
    }
    waits
}

impl Pool {
    /// A window of at least so many bytes, of whatever was there; `None` if there is no memory to spare for it.
    pub(super) fn window(&self, len: usize) -> Option<Window> {
        let size = len.max(LEAST).checked_next_power_of_two()?;
        let idle = {
            let idle = &mut self.windows.0.lock().idle;
            let at = idle.iter().rposition(|window| window.len == size);
            at.and_then(|at| idle.remove(at))
        };
        idle.or_else(|| self.open(size))
    }

    fn open(&self, size: usize) -> Option<Window> {
        if self.windows.is_full(size) {
            return None;
        }
        let bytes = size as u64;
        // Those of other sizes make room.
        while !self.takes_share(bytes) {
            let oldest = self.windows.0.lock().idle.pop_front();
            self.close(oldest?);
        }
        let Some(shared) = self.share(size) else {
            self.windows.0.lock().bytes -= bytes;
            return None;
        };
        self.hold(shared.address, bytes, &HOLDER.into());
        Some(Window { sharing: Sharing::new(), shared, len: size, driver: self.driver.clone() })
    }

    fn share(&self, size: usize) -> Option<Shared> {
        if !self.admit(size as u64) {
            return None;
        }
        let shared = self.share_of_kept(size).unwrap_or_else(|error| {
            tracing::debug!("tensors go to other processes through the host: {error}");
            None
        });
        if shared.is_none() {
            self.windows.0.lock().full = Some((Instant::now(), size));
            self.refuse(size as u64);
        }
        shared
    }

    /// Memory for a window, if need be of what is kept for reuse: unless that was to be kept.
    fn share_of_kept(&self, size: usize) -> Result<Option<Shared>> {
        match self.driver.share(size)? {
            None if !self.is_reserved => {
                self.driver.trim()?;
                self.driver.share(size)
            }
            shared => Ok(shared),
        }
    }

    /// Counts bytes of a window that is to be opened; whether the windows' share of the memory lets it.
    fn takes_share(&self, bytes: u64) -> bool {
        let mut windows = self.windows.0.lock();
        let fits = windows.bytes + bytes <= self.limit / SHARE;
        if fits {
            windows.bytes += bytes;
        }
        fits
    }

    /// Takes a window back, that nobody uses any more, unless others may still look into it.
    pub(super) fn give_back(&self, window: Window) {
        match window.sharing.is_given_up() {
            true => self.close(window),
            false => self.windows.0.lock().idle.push_back(window),
        }
    }

    /// Gives the memory of idle windows back, for others; whether there were any.
    pub(super) fn close_idle(&self) -> bool {
        let idle = std::mem::take(&mut self.windows.0.lock().idle);
        let were_there = !idle.is_empty();
        idle.into_iter().for_each(|window| self.close(window));
        were_there
    }

    fn close(&self, window: Window) {
        // Before its address is another's.
        self.forget(window.shared.address);
        let mut windows = self.windows.0.lock();
        windows.bytes -= window.len as u64;
        if window.sharing.is_known() || window.sharing.is_given_up() {
            windows.closed = Some(Instant::now());
        }
        drop(windows);
        drop(window);
    }
}

impl Engine {
    /// Brings a copy of a tensor where other processes see it, or into host memory if there is no window for it; `done` is
    /// called on another thread when it is there.
    pub(super) fn lend(self: &Arc<Engine>, tensor: DeviceTensor, done: Transfer<Value>) {
        let Some(window) = self.pool().window(tensor.memory.len()) else {
            return self.download(tensor, Box::new(move |tensor| done(tensor.map(Value::from))));
        };
        let lent = self.copy_into(window, &tensor);
        // Whoever is told that it is there finds what was lent no longer held here.
        drop(tensor);
        match lent {
            Ok((lent, mark)) => {
                self.between().after(mark, move |reached| done(reached.map(|()| lent.into())))
            }
            Err(error) => done(Err(error)),
        }
    }

    fn copy_into(
        self: &Arc<Engine>,
        window: Window,
        tensor: &DeviceTensor,
    ) -> Result<(DeviceTensor, Arc<Mark>)> {
        let (to, len) = (window.shared.address, tensor.memory.len());
        let stream = self.streams().id(Stream::Peer);
        let copied = block_of(&tensor.memory)
            .and_then(|from| from.copied_by(Stream::Peer, |from| self.driver().copy(to, from, len, stream)));
        match copied {
            Ok(mark) => {
                let memory = Arc::new(Block::in_window(self.clone(), window, to, len, mark.clone()));
                Ok((DeviceTensor { memory, ..tensor.clone() }, mark))
            }
            Err(error) => {
                self.pool().give_back(window);
                Err(error)
            }
        }
    }

    /// Whether this GPU may look into a window.
    pub(super) fn sees(self: &Arc<Engine>, window: &PeerWindow) -> bool {
        let view = self.view(window);
        view.inspect_err(|error| tracing::debug!("tensors of another process come by the host: {error}"))
            .is_ok()
    }

    /// Where this GPU sees what is in a window. May wait.
    ///
    /// # Errors
    /// The driver's, if it cannot.
    fn view(self: &Arc<Engine>, window: &PeerWindow) -> Result<Address> {
        let own = |mapping: &Mapping| Arc::ptr_eq(&mapping.engine, self).then_some(mapping.address);
        let map = || {
            let (engine, len) = (self.clone(), window.len());
            let address = self.driver().map(window.descriptor().as_fd(), len)?;
            Ok::<_, Error>(Mapping { engine, address, len })
        };
        window.view(own, map)?.ok_or_else(|| Error::internal("a view of a window got lost"))
    }

    /// Where this GPU sees what is lent to it. If it cannot, the lender is told.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn see(self: &Arc<Engine>, borrowed: &BorrowedMemory) -> Result<Address> {
        self.view(borrowed.window()).inspect_err(|_| borrowed.tell_unseen())
    }

    /// Brings a tensor that another process lends into this GPU's memory; the copy is enqueued, and who uses the tensor comes
    /// after it. What was borrowed is held meanwhile. That is done on a thread that may wait, for memory or to look into a window.
    pub(super) fn take_in(self: &Arc<Engine>, node: Arc<str>, tensor: DeviceTensor, done: Transfer<Value>) {
        let own = self.clone();
        self.taking().run(move || done(own.look_and_copy(&node, tensor)));
    }

    /// # Errors
    /// `ResourceExhausted`, and the driver's.
    fn look_and_copy(self: &Arc<Engine>, node: &Arc<str>, tensor: DeviceTensor) -> Result<Value> {
        let borrowed = BorrowedMemory::of(&*tensor.memory);
        let borrowed = borrowed.ok_or_else(|| Error::internal(format!("{tensor:?} is lent by nobody")))?;
        let (from, len) = (self.see(borrowed)?, tensor.memory.len());
        let copied = self.filled(node, (tensor.dtype, tensor.shape), len, |to| {
            self.driver().copy(to, from, len, self.streams().id(Stream::In))?;
            let mark = self.streams().mark(Stream::In)?;
            self.incoming().after(mark.clone(), move |_| drop(tensor.memory));
            Ok(mark)
        })?;
        Ok(copied.into())
    }
}

/// Where a GPU sees a window, until dropped.
#[derive(Debug)]
struct Mapping {
    engine: Arc<Engine>,
    address: Address,
    len: usize,
}

impl View for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (driver, address, len) = (self.engine.driver().clone(), self.address, self.len);
        self.engine.between().run(move || driver.unmap(address, len));
    }
}
