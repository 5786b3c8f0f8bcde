//! The reading end of a link: frames from bytes, payloads straight into their place. It reads on whichever thread of the
//! runtime sees that something has come; what takes long has a thread of its own meanwhile.

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

/// Bytes that one read takes where no large payload is awaited.
const READ: usize = 256 << 10;
/// Payloads from here on are read past the buffer, bytes.
const PAST: usize = 64 << 10;
/// Payloads from here on are read by a thread of their own, bytes.
const LONG: usize = 1 << 20;
/// Descriptors that have come and that no frame has claimed yet.
const MOST_DESCRIPTORS: usize = 64;
const THREAD_STACK: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Reader {
    connection: Arc<Connection>,
    source: Source,
    held: Held,
}

/// What has been read and not been used.
#[derive(Debug, Default)]
struct Held {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    descriptors: VecDeque<OwnedFd>,
}

impl Reader {
    /// Within a runtime.
    ///
    /// # Errors
    /// That the system cannot tell when something comes.
    pub(super) fn new(connection: Arc<Connection>) -> io::Result<Reader> {
        let source = connection.socket.source()?;
        Ok(Reader { connection, source, held: Held { buffer: vec![0; READ], ..Held::default() } })
    }

    /// The next frame, and its payload's length; `None` at the end. The payload must be read before the next.
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

    /// Whether all of the next frame has been read.
    pub(super) fn holds_frame(&self) -> bool {
        let Some(header) = self.held.bytes().first_chunk::<HEADER>() else { return false };
        let Ok(Header { head, payload, .. }) = Header::decode(header) else { return false };
        payload < LONG as u64 && self.held.len() - HEADER >= head + payload as usize
    }

    /// The payload of a frame that is a message.
    pub(super) async fn message(&mut self, len: usize) -> io::Result<Bytes> {
        if len > MAX_MESSAGE_SIZE {
            return Err(Malformed("message: it is over the size limit").into());
        }
        let mut message = Vec::new();
        // A stated length takes no memory before its bytes come.
        while message.len() < len {
            let from = message.len();
            message.resize(len.min(from + (1 << 20)), 0);
            self.fill_here(&mut message[from..]).await?;
        }
        Ok(message.into())
    }

    /// Fills a buffer with a payload of its length.
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
            // A link that has ended meanwhile wants nothing.
            let _ = give.send((held, read.map(|()| buffer)));
        })?;
        let (held, buffer) = filled.await.map_err(io::Error::other)?;
        self.held = held;
        buffer
    }

    /// Reads a payload that there is no place for.
    pub(super) async fn skip(&mut self, len: usize) -> io::Result<()> {
        if is_parallel(len, self.connection.lanes.len()) {
            // A process that has no memory for a tensor has none for what comes after it.
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

    /// The descriptor that came with the last frame, or before.
    pub(super) fn descriptor(&mut self) -> io::Result<File> {
        let descriptor = self.held.descriptors.pop_front();
        Ok(descriptor.ok_or(Malformed("block: it has no descriptor"))?.into())
    }

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

    /// Reads until so many bytes are held; false if the end comes before.
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

    /// Moves as much as there is.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let len = into.len().min(self.len());
        into[..len].copy_from_slice(&self.bytes()[..len]);
        self.start += len;
        len
    }

    /// For so many bytes in all.
    fn make_room(&mut self, wanted: usize) {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.len());
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
    }
}

/// Fills memory with a payload that comes by one connection, or in parts by all. Waits.
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
        // Who reads another part would wait for the rest of it, which may never come.
        read_part(connection, held, own).inspect_err(|_| connection.close())?;
        others.into_iter().try_for_each(|o| o.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    })
}

/// Fills memory with what is held, and with what comes by the main connection.
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

fn some(read: usize) -> io::Result<usize> {
    if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
}

fn check_number(descriptors: &VecDeque<OwnedFd>) -> io::Result<()> {
    match descriptors.len() > MOST_DESCRIPTORS {
        true => Err(Malformed("stream: descriptors without frames").into()),
        false => Ok(()),
    }
}
