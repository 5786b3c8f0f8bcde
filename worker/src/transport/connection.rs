//! The writing end of a link's connections. The thread that has a frame to send writes it as far as the
//! socket accepts it; a thread of the link writes the remaining bytes, so that compute threads never wait for
//! a peer.

use super::frame::{Frame, Malformed};
use super::outbox::{NextWrite, Outbox};
use super::socket::Socket;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Largest batch that the sending thread writes itself, bytes; the link's thread writes larger ones, because
/// copying them into the socket takes long.
const MAX_DIRECT: usize = 512 << 10;
/// Payloads of this size and above are split over all connections, bytes.
const PARALLEL_FROM: usize = 4 << 20;
/// Largest single write to a secondary connection, bytes.
const MAX_WRITE: usize = 4 << 20;
/// Maximum number of batches that a sending thread writes in one flush while other threads add frames; the link's
/// thread writes further batches.
const MAX_ROUNDS: usize = 4;
const WRITER_STACK: usize = 128 << 10;

/// The connections of a link: the main one, and over TCP further ones for large payloads.
pub(super) struct Connection {
    pub(super) socket: Socket,
    /// Further connections to the same process, for parts of large payloads.
    pub(super) secondaries: Box<[TcpStream]>,
    state: Mutex<WriteState>,
    /// Wakes the link's writing thread when it is responsible for writing or the connection has closed.
    has_work: Condvar,
    broken: AtomicBool,
    /// Set when the other end has announced its shutdown.
    peer_is_shutting_down: AtomicBool,
}

/// The frames that wait to be written to a connection, and the thread that is responsible for writing them.
#[derive(Default)]
struct WriteState {
    outbox: Outbox,
    /// Set while a thread writes; that thread also writes the frames that other threads add meanwhile.
    is_writing: bool,
    /// Set while the link's thread is responsible for writing.
    is_handed_over: bool,
    has_thread: bool,
}

impl visit::Flush for Connection {
    fn flush(self: Arc<Self>) {
        Connection::flush(&self);
    }

    fn flush_now(self: Arc<Self>) {
        Connection::flush_now(&self);
    }
}

impl Connection {
    pub(super) fn new(socket: Socket, secondaries: Vec<TcpStream>) -> Connection {
        Connection {
            socket,
            secondaries: secondaries.into(),
            state: Mutex::default(),
            has_work: Condvar::new(),
            broken: AtomicBool::new(false),
            peer_is_shutting_down: AtomicBool::new(false),
        }
    }

    /// Returns whether the connection has failed or was closed.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Announces to the other end that this process is shutting down.
    pub(super) fn announce_shutdown(self: &Arc<Self>) {
        if self.post(&Frame::ShuttingDown, None).is_ok() {
            self.flush();
        }
    }

    /// Records that the other end has [announced its shutdown](Connection::announce_shutdown).
    pub(super) fn set_peer_shutting_down(&self) {
        self.peer_is_shutting_down.store(true, Ordering::Release);
    }

    /// Returns the error message for the end of the connection with `peer`. The message begins with `use_name`, such as
    /// "the connection for tensors from".
    pub(super) fn end_message(&self, use_name: &str, peer: &str) -> String {
        match self.peer_is_shutting_down.load(Ordering::Acquire) {
            true => format!("{use_name} {peer} has ended: {peer} is shutting down"),
            false => format!("{use_name} {peer} broke"),
        }
    }

    /// Queues a frame for the next [`Connection::flush`]. Returns the number of bytes in the queue. On a
    /// broken connection the frame is lost.
    ///
    /// # Errors
    /// For a frame that cannot be encoded.
    pub(super) fn post(&self, frame: &Frame, payload: Option<Bytes>) -> Result<usize, Malformed> {
        let parallel_from = if self.secondaries.is_empty() { usize::MAX } else { PARALLEL_FROM };
        let outbox = &mut self.state.lock().outbox;
        outbox.add(frame, payload, parallel_from)?;
        Ok(outbox.len())
    }

    /// Returns the number of queued bytes, without those that are being written at present.
    pub(super) fn unwritten(&self) -> usize {
        self.state.lock().outbox.len()
    }

    /// Queues a frame without payload and a file descriptor that is sent with it, see [`Connection::post`].
    pub(super) fn post_descriptor(&self, frame: &Frame, descriptor: OwnedFd) -> Result<(), Malformed> {
        self.state.lock().outbox.add_descriptor(frame, descriptor)
    }

    /// Writes the queued frames: at once, or, if the thread is within a [`visit::cork`], at the end of the cork. Does
    /// not block.
    pub(super) fn flush(self: &Arc<Self>) {
        if !visit::enqueue_if_corked(self) {
            self.flush_now();
        }
    }

    /// Writes the queued frames at once, even within a [`visit::cork`]. Does not block.
    pub(super) fn flush_now(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.is_writing || state.outbox.is_empty() || self.is_broken() {
            return;
        }
        state.is_writing = true;
        for _ in 0..MAX_ROUNDS {
            let mut batch = std::mem::take(&mut state.outbox);
            drop(state);
            let written = if batch.len() > MAX_DIRECT { Ok(()) } else { self.write(&mut batch, false) };
            if written.is_err() {
                return self.close();
            }
            state = self.state.lock();
            let is_blocked = !batch.is_empty();
            batch.append(std::mem::take(&mut state.outbox));
            state.outbox = batch;
            if state.outbox.is_empty() {
                state.is_writing = false;
                return;
            }
            if is_blocked {
                break;
            }
        }
        state.is_handed_over = true;
        self.hand_over(&mut state);
    }

    /// Wakes the link's writing thread, which writes the queued frames; starts the thread if it does not run.
    fn hand_over(self: &Arc<Self>, state: &mut WriteState) {
        if state.has_thread {
            self.has_work.notify_one();
            return;
        }
        let own = self.clone();
        let thread = std::thread::Builder::new().name("anabranch-send".into()).stack_size(WRITER_STACK);
        match thread.spawn(move || own.write_loop()) {
            Ok(_) => state.has_thread = true,
            Err(error) => {
                tracing::warn!("no thread for a connection, which is given up: {error}");
                self.broken.store(true, Ordering::Release);
                self.socket.shut_down();
            }
        }
    }

    /// Runs the loop of the link's thread: writes the frames that other threads left, until the connection ends.
    fn write_loop(&self) {
        let mut state = self.state.lock();
        while !self.is_broken() {
            if !state.is_handed_over {
                self.has_work.wait(&mut state);
                continue;
            }
            if state.outbox.is_empty() {
                (state.is_handed_over, state.is_writing) = (false, false);
                continue;
            }
            let mut batch = std::mem::take(&mut state.outbox);
            drop(state);
            if self.write(&mut batch, true).is_err() {
                self.close();
            }
            drop(batch);
            state = self.state.lock();
        }
    }

    /// Writes a batch of frames: the whole batch if `waits` is set, or else as much as the socket accepts without
    /// blocking.
    fn write(&self, batch: &mut Outbox, waits: bool) -> io::Result<()> {
        loop {
            let written = match batch.next() {
                NextWrite::Nothing => return Ok(()),
                NextWrite::Slices(slices) => self.socket.send(&slices, None, waits),
                NextWrite::WithDescriptor(bytes, fd) => {
                    self.socket.send(&[IoSlice::new(bytes)], Some(fd), waits)
                }
                NextWrite::Parallel(_) if !waits => return Ok(()),
                NextWrite::Parallel(payload) => self.write_parts(&payload).map(|()| payload.len()),
            };
            match written {
                Ok(written) => batch.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !waits => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Splits a payload into one part for each connection of the link, and writes all parts at the same time.
    fn write_parts(&self, payload: &[u8]) -> io::Result<()> {
        let mut parts = payload.chunks(part_len(payload.len(), self.secondaries.len()));
        let own = parts.next().unwrap_or_default();
        std::thread::scope(|scope| {
            let write = |(mut secondary, part): (&TcpStream, &[u8])| {
                part.chunks(MAX_WRITE).try_for_each(|stripe| secondary.write_all(stripe))
            };
            let others: Vec<_> =
                self.secondaries.iter().zip(parts).map(|pair| scope.spawn(move || write(pair))).collect();
            let mut rest = own;
            while !rest.is_empty() {
                rest = &rest[self.socket.send(&[IoSlice::new(rest)], None, true)?..];
            }
            others.into_iter().try_for_each(|o| o.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
        })
    }

    /// Closes the connection; frames that are queued later are lost.
    pub(super) fn close(&self) {
        self.broken.store(true, Ordering::Release);
        self.socket.shut_down();
        for secondary in &self.secondaries {
            let _ = secondary.shutdown(Shutdown::Both);
        }
        let lost = {
            let mut state = self.state.lock();
            self.has_work.notify_all();
            std::mem::take(&mut state.outbox)
        };
        drop(lost);
    }
}

/// Returns the length of the parts into which a payload of `len` bytes is split for the main connection and
/// `secondaries` further ones; the last part may be shorter.
pub(super) fn part_len(len: usize, secondaries: usize) -> usize {
    len.div_ceil(secondaries + 1).max(1)
}

/// Returns whether a payload of `len` bytes is split over all connections of a link with `secondaries`
/// secondary ones.
pub(super) fn is_parallel(len: usize, secondaries: usize) -> bool {
    secondaries > 0 && len >= PARALLEL_FROM
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({:?}, {} secondaries)", self.socket, self.secondaries.len())
    }
}
