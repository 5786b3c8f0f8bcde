//! The reading end of a link: decodes frames, and reads payloads into their final memory. It reads on the
//! runtime's thread that sees the socket become readable; long payloads are read by a separate thread.

use super::connection::{Connection, is_parallel, part};
use super::frame::{Frame, HEADER, Header, Malformed};
use super::socket::Source;
use bytes::Bytes;
use graph::Buffer;
use proto::grpc::MAX_MESSAGE_SIZE;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Size of the read buffer, bytes.
const READ: usize = 256 << 10;
/// Payloads of this size and above are read without the buffer, bytes.
const PAST: usize = 64 << 10;
/// Payloads of this size and above are read by a separate thread, bytes.
const LONG: usize = 1 << 20;
/// Most descriptors that have arrived and are not yet claimed by a frame.
const MOST_DESCRIPTORS: usize = 64;
const THREAD_STACK: usize = 128 << 10;

/// Reads the frames of a link.
#[derive(Debug)]
pub(super) struct Reader {
    connection: Arc<Connection>,
    source: Source,
    held: Held,
}

/// The bytes and descriptors that have been read and not yet used.
#[derive(Debug, Default)]
struct Held {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    descriptors: VecDeque<OwnedFd>,
}

impl Reader {
    /// Creates a reader; must be called within a runtime.
    ///
    /// # Errors
    /// If the runtime cannot watch the socket.
    pub(super) fn new(connection: Arc<Connection>) -> io::Result<Reader> {
        let source = connection.socket.source()?;
        Ok(Reader { connection, source, held: Held { buffer: vec![0; READ], ..Held::default() } })
    }

    /// Reads the next frame. Returns it with its payload's length; `None` at the end. The payload must be
    /// read before the next frame.
    pub(super) async fn frame(&mut self) -> io::Result<Option<(Frame, usize)>> {
        if !self.hold(HEADER).await? {
            return if self.held.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        let mut header = [0; HEADER];
        self.held.take(&mut header);
        let Header { kind, head, payload } = Header::decode(&header)?;
        if !self.hold(head).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let frame = Frame::decode(kind, &self.held.bytes()[..head])?;
        self.held.start += head;
        let payload = usize::try_from(payload).map_err(|_| Malformed("payload's length"))?;
        Ok(Some((frame, payload)))
    }

    /// Returns whether the next frame has been read completely.
    pub(super) fn holds_frame(&self) -> bool {
        let Some(header) = self.held.bytes().first_chunk::<HEADER>() else { return false };
        let Ok(Header { head, payload, .. }) = Header::decode(header) else { return false };
        payload < LONG as u64 && self.held.len() - HEADER >= head + payload as usize
    }

    /// Reads the payload of a frame whose payload is a protobuf message.
    pub(super) async fn message(&mut self, len: usize) -> io::Result<Bytes> {
        if len > MAX_MESSAGE_SIZE {
            return Err(Malformed("message: it is over the size limit").into());
        }
        let mut message = Vec::new();
        // Memory is allocated as the bytes arrive, because the announced length may be false.
        while message.len() < len {
            let from = message.len();
            message.resize(len.min(from + (1 << 20)), 0);
            self.fill_here(&mut message[from..]).await?;
        }
        Ok(message.into())
    }

    /// Fills a buffer with a payload of the same length.
    pub(super) async fn fill(&mut self, mut buffer: Buffer) -> io::Result<Buffer> {
        if buffer.len() < LONG {
            self.fill_here(buffer.as_mut_slice()).await?;
            return Ok(buffer);
        }
        let (connection, mut held) = (self.connection.clone(), std::mem::take(&mut self.held));
        let (give, filled) = oneshot::channel();
        let thread = std::thread::Builder::new().name("anabranch-recv".into()).stack_size(THREAD_STACK);
        thread.spawn(move || {
            let read = read_parts(&connection, &mut held, buffer.as_mut_slice());
            // An error means that the link has ended meanwhile.
            let _ = give.send((held, read.map(|()| buffer)));
        })?;
        let (held, buffer) = filled.await.map_err(io::Error::other)?;
        self.held = held;
        buffer
    }

    /// Reads and discards a payload that there is no memory for.
    pub(super) async fn skip(&mut self, len: usize) -> io::Result<()> {
        if is_parallel(len, self.connection.lanes.len()) {
            // Closing the link is acceptable: a process without memory for this tensor has none for later
            // ones either.
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let mut place = vec![0; len.min(PAST)];
        let mut left = len;
        while left > 0 {
            let now = left.min(place.len());
            self.fill_here(&mut place[..now]).await?;
            left -= now;
        }
        Ok(())
    }

    /// Returns the descriptor that arrived with the last frame or before.
    pub(super) fn descriptor(&mut self) -> io::Result<File> {
        let descriptor = self.held.descriptors.pop_front();
        Ok(descriptor.ok_or(Malformed("block: it has no descriptor"))?.into())
    }

    /// Fills memory from the buffer and the main connection.
    async fn fill_here(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            if self.held.is_empty() && into.len() >= PAST {
                let read = self.source.receive(into, &mut self.held.descriptors).await?;
                check_number(&self.held.descriptors)?;
                into = &mut into[some(read)?..];
                continue;
            }
            if self.held.is_empty() && !self.hold(1).await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let taken = self.held.take(into);
            into = &mut into[taken..];
        }
        Ok(())
    }

    /// Reads until the buffer has `wanted` bytes. Returns false if the connection ends before.
    async fn hold(&mut self, wanted: usize) -> io::Result<bool> {
        let held = &mut self.held;
        if held.len() >= wanted {
            return Ok(true);
        }
        held.make_room(wanted);
        while held.len() < wanted {
            let read = self.source.receive(&mut held.buffer[held.end..], &mut held.descriptors).await?;
            check_number(&held.descriptors)?;
            if read == 0 {
                return Ok(false);
            }
            held.end += read;
        }
        Ok(true)
    }
}

impl Held {
    fn len(&self) -> usize {
        self.end - self.start
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Moves as many bytes as there are. Returns their number.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let len = into.len().min(self.len());
        into[..len].copy_from_slice(&self.bytes()[..len]);
        self.start += len;
        len
    }

    /// Makes room for `wanted` bytes in total.
    fn make_room(&mut self, wanted: usize) {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.len());
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
    }
}

/// Fills memory with a payload that comes over one connection, or in parts over all. Blocks the thread.
fn read_parts(connection: &Connection, held: &mut Held, into: &mut [u8]) -> io::Result<()> {
    let len = match is_parallel(into.len(), connection.lanes.len()) {
        true => part(into.len(), connection.lanes.len()),
        false => into.len(),
    };
    let mut parts = into.chunks_mut(len);
    let own = parts.next().unwrap_or_default();
    std::thread::scope(|scope| {
        let read = |(mut lane, part): (&TcpStream, &mut [u8])| lane.read_exact(part);
        let others: Vec<_> =
            connection.lanes.iter().zip(parts).map(|pair| scope.spawn(move || read(pair))).collect();
        // The other threads would wait forever for their parts, so the connection is closed on an error.
        read_part(connection, held, own).inspect_err(|_| connection.close())?;
        others.into_iter().try_for_each(|o| o.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    })
}

/// Fills memory from the buffer and the main connection. Blocks the thread.
fn read_part(connection: &Connection, held: &mut Held, into: &mut [u8]) -> io::Result<()> {
    let taken = held.take(into);
    let mut left = &mut into[taken..];
    while !left.is_empty() {
        let read = connection.socket.receive(left, &mut held.descriptors, None)?;
        check_number(&held.descriptors)?;
        left = &mut left[some(read)?..];
    }
    Ok(())
}

/// Converts the end of the connection into an error.
fn some(read: usize) -> io::Result<usize> {
    if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
}

/// Checks that the peer has not sent too many descriptors.
fn check_number(descriptors: &VecDeque<OwnedFd>) -> io::Result<()> {
    match descriptors.len() > MOST_DESCRIPTORS {
        true => Err(Malformed("stream: descriptors without frames").into()),
        false => Ok(()),
    }
}
