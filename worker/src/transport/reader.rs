//! The reading end of a link: decodes frames, and reads payloads into their final memory. The runtime's
//! thread that polls the socket also reads it; a separate thread reads long payloads.

use super::connection::{Connection, is_parallel, part_len};
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
const READ_BUFFER: usize = 256 << 10;
/// Size from which payloads are read into their final memory without the read buffer, bytes.
const MIN_UNBUFFERED: usize = 64 << 10;
/// Size from which payloads are read by a separate thread, bytes.
const MIN_ON_THREAD: usize = 1 << 20;
/// Largest number of file descriptors that have arrived and whose [`Frame::Block`] has not been processed.
const MAX_DESCRIPTORS: usize = 64;
const THREAD_STACK: usize = 128 << 10;

/// The reader of the frames and payloads of a link.
#[derive(Debug)]
pub(super) struct Reader {
    connection: Arc<Connection>,
    source: Source,
    unread: ReadBuffer,
}

/// The bytes and descriptors that were read from the socket and not yet decoded.
#[derive(Debug, Default)]
struct ReadBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    descriptors: VecDeque<OwnedFd>,
}

impl Reader {
    /// Makes a reader of the connection; must be called within a runtime.
    ///
    /// # Errors
    /// If the runtime cannot watch the socket.
    pub(super) fn new(connection: Arc<Connection>) -> io::Result<Reader> {
        let source = connection.socket.source()?;
        Ok(Reader {
            connection,
            source,
            unread: ReadBuffer { bytes: vec![0; READ_BUFFER], ..ReadBuffer::default() },
        })
    }

    /// Reads the next frame. Returns the frame with its payload's length; `None` at the end of the
    /// connection. The caller must read the payload before it reads the next frame.
    pub(super) async fn frame(&mut self) -> io::Result<Option<(Frame, usize)>> {
        if !self.fill_to(HEADER).await? {
            return if self.unread.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        let mut header = [0; HEADER];
        self.unread.take(&mut header);
        let Header { kind, fields_len, payload } = Header::decode(&header)?;
        if !self.fill_to(fields_len).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let frame = Frame::decode(kind, &self.unread.bytes()[..fields_len])?;
        self.unread.start += fields_len;
        let payload = usize::try_from(payload).map_err(|_| Malformed("payload's length"))?;
        Ok(Some((frame, payload)))
    }

    /// Returns whether the next frame is in the buffer with its whole payload.
    pub(super) fn has_frame(&self) -> bool {
        let Some(header) = self.unread.bytes().first_chunk::<HEADER>() else { return false };
        let Ok(Header { fields_len, payload, .. }) = Header::decode(header) else { return false };
        payload < MIN_ON_THREAD as u64 && self.unread.len() - HEADER >= fields_len + payload as usize
    }

    /// Reads a payload of `len` bytes that is a protobuf message.
    pub(super) async fn message(&mut self, len: usize) -> io::Result<Bytes> {
        if len > MAX_MESSAGE_SIZE {
            return Err(Malformed("message: it is over the size limit").into());
        }
        let mut message = Vec::new();
        // Memory is allocated as the bytes arrive, because the announced length may be false.
        while message.len() < len {
            let from = message.len();
            message.resize(len.min(from + (1 << 20)), 0);
            self.read_into(&mut message[from..]).await?;
        }
        Ok(message.into())
    }

    /// Reads a payload into a buffer of the payload's length.
    pub(super) async fn fill(&mut self, mut buffer: Buffer) -> io::Result<Buffer> {
        if buffer.len() < MIN_ON_THREAD {
            self.read_into(buffer.as_mut_slice()).await?;
            return Ok(buffer);
        }
        let (connection, mut unread) = (self.connection.clone(), std::mem::take(&mut self.unread));
        let (sender, filled) = oneshot::channel();
        let thread = std::thread::Builder::new().name("anabranch-recv".into()).stack_size(THREAD_STACK);
        thread.spawn(move || {
            let read = read_parts(&connection, &mut unread, buffer.as_mut_slice());
            // An error means that the link has ended meanwhile.
            let _ = sender.send((unread, read.map(|()| buffer)));
        })?;
        let (unread, buffer) = filled.await.map_err(io::Error::other)?;
        self.unread = unread;
        buffer
    }

    /// Reads and discards a payload of `len` bytes, for which there is no memory.
    pub(super) async fn skip(&mut self, len: usize) -> io::Result<()> {
        if is_parallel(len, self.connection.secondaries.len()) {
            // Closing the link is acceptable: a process without memory for this tensor has none for later
            // ones either.
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let mut scratch = vec![0; len.min(MIN_UNBUFFERED)];
        let mut left = len;
        while left > 0 {
            let now = left.min(scratch.len());
            self.read_into(&mut scratch[..now]).await?;
            left -= now;
        }
        Ok(())
    }

    /// Removes and returns the oldest descriptor that has arrived.
    pub(super) fn descriptor(&mut self) -> io::Result<File> {
        let descriptor = self.unread.descriptors.pop_front();
        Ok(descriptor.ok_or(Malformed("block: it has no descriptor"))?.into())
    }

    /// Fills `into` with bytes from the buffer and then from the main connection.
    async fn read_into(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            if self.unread.is_empty() && into.len() >= MIN_UNBUFFERED {
                let read = self.source.receive(into, &mut self.unread.descriptors).await?;
                check_descriptor_count(&self.unread.descriptors)?;
                into = &mut into[nonzero(read)?..];
                continue;
            }
            if self.unread.is_empty() && !self.fill_to(1).await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let taken = self.unread.take(into);
            into = &mut into[taken..];
        }
        Ok(())
    }

    /// Reads until the buffer has `len` bytes. Returns false if the connection ends earlier.
    async fn fill_to(&mut self, len: usize) -> io::Result<bool> {
        let unread = &mut self.unread;
        if unread.len() >= len {
            return Ok(true);
        }
        unread.make_room(len);
        while unread.len() < len {
            let read = self.source.receive(&mut unread.bytes[unread.end..], &mut unread.descriptors).await?;
            check_descriptor_count(&unread.descriptors)?;
            if read == 0 {
                return Ok(false);
            }
            unread.end += read;
        }
        Ok(true)
    }
}

impl ReadBuffer {
    fn len(&self) -> usize {
        self.end - self.start
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Moves bytes to `into` until it is full or the buffer is empty. Returns the number of bytes moved.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let len = into.len().min(self.len());
        into[..len].copy_from_slice(&self.bytes()[..len]);
        self.start += len;
        len
    }

    /// Moves the unread bytes to the start of the buffer, and enlarges it to `len` bytes if it is smaller.
    fn make_room(&mut self, len: usize) {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.len());
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
    }
}

/// Fills `into` with a payload that comes over the main connection or, if it is large, in parts over all
/// connections of the link. Blocks the thread.
fn read_parts(connection: &Connection, unread: &mut ReadBuffer, into: &mut [u8]) -> io::Result<()> {
    let len = match is_parallel(into.len(), connection.secondaries.len()) {
        true => part_len(into.len(), connection.secondaries.len()),
        false => into.len(),
    };
    let mut parts = into.chunks_mut(len);
    let own = parts.next().unwrap_or_default();
    std::thread::scope(|scope| {
        let read = |(mut secondary, part): (&TcpStream, &mut [u8])| secondary.read_exact(part);
        let others: Vec<_> =
            connection.secondaries.iter().zip(parts).map(|pair| scope.spawn(move || read(pair))).collect();
        // The other threads would wait forever for their parts, so the connection is closed on an error.
        read_part(connection, unread, own).inspect_err(|_| connection.close())?;
        others.into_iter().try_for_each(|o| o.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    })
}

/// Fills `into` with bytes from the buffer and then from the main connection. Blocks the thread.
fn read_part(connection: &Connection, unread: &mut ReadBuffer, into: &mut [u8]) -> io::Result<()> {
    let taken = unread.take(into);
    let mut left = &mut into[taken..];
    while !left.is_empty() {
        let read = connection.socket.receive(left, &mut unread.descriptors, None)?;
        check_descriptor_count(&unread.descriptors)?;
        left = &mut left[nonzero(read)?..];
    }
    Ok(())
}

/// Converts the result 0 of a read, which means the end of the connection, into an error.
fn nonzero(read: usize) -> io::Result<usize> {
    if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
}

/// Checks that at most [`MAX_DESCRIPTORS`] descriptors wait for their frames.
fn check_descriptor_count(descriptors: &VecDeque<OwnedFd>) -> io::Result<()> {
    match descriptors.len() > MAX_DESCRIPTORS {
        true => Err(Malformed("stream: descriptors without frames").into()),
        false => Ok(()),
    }
}
