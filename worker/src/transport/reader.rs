//! The reading end of a link: frames from bytes, payloads straight into their place.

use super::connection::{Connection, is_parallel, part};
use super::frame::{Frame, HEADER, Header, Malformed};
use bytes::Bytes;
use proto::grpc::MAX_MESSAGE_SIZE;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes that one read takes where no large payload is awaited.
const READ: usize = 256 << 10;
/// Payloads from here on are read past the buffer, bytes.
const PAST: usize = 64 << 10;
/// Descriptors that have come and that no frame has claimed yet.
const MOST_DESCRIPTORS: usize = 64;

#[derive(Debug)]
pub(super) struct Reader {
    connection: Arc<Connection>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    descriptors: VecDeque<OwnedFd>,
}

impl Reader {
    pub(super) fn new(connection: Arc<Connection>) -> Reader {
        let descriptors = VecDeque::new();
        Reader { connection, buffer: vec![0; READ], start: 0, end: 0, descriptors }
    }

    /// The next frame, and its payload's length; `None` at the end. The payload must be read before the next.
    pub(super) fn frame(&mut self) -> io::Result<Option<(Frame, usize)>> {
        if !self.hold(HEADER)? {
            return if self.start == self.end { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        let mut header = [0; HEADER];
        header.copy_from_slice(&self.buffer[self.start..self.start + HEADER]);
        let Header { kind, head, payload } = Header::decode(&header)?;
        self.start += HEADER;
        if !self.hold(head)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let frame = Frame::decode(kind, &self.buffer[self.start..self.start + head])?;
        self.start += head;
        let payload = usize::try_from(payload).map_err(|_| Malformed("payload's length"))?;
        Ok(Some((frame, payload)))
    }

    /// The payload of a frame that is a message.
    pub(super) fn message(&mut self, len: usize) -> io::Result<Bytes> {
        if len > MAX_MESSAGE_SIZE {
            return Err(Malformed("message: it is over the size limit").into());
        }
        let mut message = Vec::new();
        // A stated length takes no memory before its bytes come.
        while message.len() < len {
            let from = message.len();
            message.resize(len.min(from + (1 << 20)), 0);
            self.fill_here(&mut message[from..])?;
        }
        Ok(message.into())
    }

    /// Fills memory with a payload of its length.
    pub(super) fn fill(&mut self, into: &mut [u8]) -> io::Result<()> {
        let connection = self.connection.clone();
        if !is_parallel(into.len(), connection.lanes.len()) {
            return self.fill_here(into);
        }
        let len = part(into.len(), connection.lanes.len());
        let mut parts = into.chunks_mut(len);
        let own = parts.next().unwrap_or_default();
        std::thread::scope(|scope| {
            let read = |(mut lane, part): (&TcpStream, &mut [u8])| lane.read_exact(part);
            let others: Vec<_> =
                connection.lanes.iter().zip(parts).map(|pair| scope.spawn(move || read(pair))).collect();
            self.fill_here(own)?;
            others.into_iter().try_for_each(|o| o.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
        })
    }

    /// Reads a payload that there is no place for.
    pub(super) fn skip(&mut self, len: usize) -> io::Result<()> {
        if is_parallel(len, self.connection.lanes.len()) {
            // A process that has no memory for a tensor has none for what comes after it.
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let mut place = vec![0; len.min(PAST)];
        let mut left = len;
        while left > 0 {
            let now = left.min(place.len());
            self.fill_here(&mut place[..now])?;
            left -= now;
        }
        Ok(())
    }

    /// The descriptor that came with the last frame, or before.
    pub(super) fn descriptor(&mut self) -> io::Result<File> {
        let descriptor = self.descriptors.pop_front().ok_or(Malformed("block: it has no descriptor"))?;
        Ok(descriptor.into())
    }

    fn fill_here(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            if self.start == self.end && into.len() >= PAST {
                let read = self.receive_past(into)?;
                into = &mut into[read..];
                continue;
            }
            if self.start == self.end && !self.hold(1)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let now = into.len().min(self.end - self.start);
            into[..now].copy_from_slice(&self.buffer[self.start..self.start + now]);
            self.start += now;
            into = &mut into[now..];
        }
        Ok(())
    }

    fn receive_past(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.connection.socket.receive(into, &mut self.descriptors)?;
        self.check_descriptors()?;
        if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
    }

    fn check_descriptors(&self) -> io::Result<()> {
        match self.descriptors.len() > MOST_DESCRIPTORS {
            true => Err(Malformed("stream: descriptors without frames").into()),
            false => Ok(()),
        }
    }

    /// Reads until the buffer holds so many bytes; false if the end comes before.
    fn hold(&mut self, wanted: usize) -> io::Result<bool> {
        if self.end - self.start >= wanted {
            return Ok(true);
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        while self.end < wanted {
            let read = self.connection.socket.receive(&mut self.buffer[self.end..], &mut self.descriptors)?;
            if read == 0 {
                return Ok(false);
            }
            self.check_descriptors()?;
            self.end += read;
        }
        Ok(true)
    }
}
