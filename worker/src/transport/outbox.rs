//! The frames that wait to be written to a connection: small frames are joined in one buffer, large payloads
//! stay in place. This module uses no sockets.

use super::frame::{Frame, Malformed};
use bytes::Bytes;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum size of a payload that is copied behind its frame's fields, bytes: copying a small payload costs less than
/// writing another slice.
const MAX_COPIED: usize = 16 << 10;
/// Size from which a buffer of joined frames takes no further frame, bytes; a new buffer is begun instead.
const MAX_PIECE: usize = 256 << 10;
/// Largest number of slices that one vectored write has.
const MAX_SLICES: usize = 64;

/// A queue of frames that wait to be written.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pieces: VecDeque<Piece>,
    /// Number of bytes of the first element of `pieces` that have been written.
    written: usize,
    len: usize,
}

#[derive(Debug)]
enum Piece {
    Frames(Vec<u8>),
    Payload(Bytes),
    /// A large payload that is split over all connections of the link.
    Parallel(Bytes),
    /// A frame that is sent with a file descriptor.
    Descriptor(Vec<u8>, OwnedFd),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Frames(bytes) | Piece::Descriptor(bytes, _) => bytes,
            Piece::Payload(bytes) | Piece::Parallel(bytes) => bytes,
        }
    }
}

/// The data of the next write to the connection.
#[derive(Debug)]
pub(super) enum NextWrite<'a> {
    Nothing,
    Slices(Vec<IoSlice<'a>>),
    /// The bytes of a frame, and the descriptor that is sent with the first of these bytes.
    WithDescriptor(&'a [u8], BorrowedFd<'a>),
    Parallel(Bytes),
}

impl Outbox {
    /// Returns the number of bytes that wait to be written.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds a frame; a payload of `parallel_from` bytes or more is split over all connections.
    ///
    /// # Errors
    /// Those of [`Frame::encode`]; then nothing is added.
    pub(super) fn add(
        &mut self,
        frame: &Frame,
        payload: Option<Bytes>,
        parallel_from: usize,
    ) -> Result<(), Malformed> {
        let len = payload.as_ref().map_or(0, Bytes::len);
        let piece = match self.pieces.back_mut() {
            Some(Piece::Frames(piece)) if piece.len() < MAX_PIECE => piece,
            _ => {
                self.pieces.push_back(Piece::Frames(Vec::new()));
                match self.pieces.back_mut() {
                    Some(Piece::Frames(piece)) => piece,
                    _ => return Ok(()),
                }
            }
        };
        let before = piece.len();
        let encoded = frame.encode(len, piece);
        if encoded.is_ok() && len <= MAX_COPIED {
            piece.extend_from_slice(&payload.unwrap_or_default());
            self.len += piece.len() - before;
            return Ok(());
        }
        self.len += piece.len() - before;
        if piece.is_empty() {
            self.pieces.pop_back();
        }
        encoded?;
        let payload = payload.unwrap_or_default();
        self.len += len;
        self.pieces.push_back(match len >= parallel_from {
            true => Piece::Parallel(payload),
            false => Piece::Payload(payload),
        });
        Ok(())
    }

    /// Adds a frame that is sent with a file descriptor.
    pub(super) fn add_descriptor(&mut self, frame: &Frame, descriptor: OwnedFd) -> Result<(), Malformed> {
        let mut bytes = Vec::new();
        frame.encode(0, &mut bytes)?;
        self.len += bytes.len();
        self.pieces.push_back(Piece::Descriptor(bytes, descriptor));
        Ok(())
    }

    /// Appends the contents of `later`, an outbox of which no byte has been written.
    pub(super) fn append(&mut self, mut later: Outbox) {
        debug_assert_eq!(later.written, 0, "a part of it has been written");
        self.len += later.len;
        self.pieces.append(&mut later.pieces);
    }

    /// Returns the data of the next write, without removing the data from the queue.
    pub(super) fn next(&self) -> NextWrite<'_> {
        match self.pieces.front() {
            None => NextWrite::Nothing,
            Some(Piece::Descriptor(bytes, fd)) if self.written == 0 => {
                NextWrite::WithDescriptor(bytes, fd.as_fd())
            }
            Some(Piece::Parallel(payload)) => NextWrite::Parallel(payload.clone()),
            Some(first) => {
                let first = IoSlice::new(&first.bytes()[self.written..]);
                let plain = |p: &&Piece| matches!(p, Piece::Frames(_) | Piece::Payload(_));
                let others = self.pieces.iter().skip(1).take_while(plain).map(|p| IoSlice::new(p.bytes()));
                NextWrite::Slices(std::iter::once(first).chain(others).take(MAX_SLICES).collect())
            }
        }
    }

    /// Removes the first `written` bytes of the queue, which have been written.
    pub(super) fn advance(&mut self, written: usize) {
        self.written += written;
        self.len -= written.min(self.len);
        while let Some(first) = self.pieces.front()
            && self.written >= first.bytes().len()
        {
            self.written -= first.bytes().len();
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::frame::ValueId;
    use device::shared_block::MemoryKind;

    fn offer(key: &str) -> Frame {
        Frame::Offer(ValueId { step_id: 1, key: key.into() })
    }

    fn alone(frame: &Frame, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        assert!(frame.encode(payload.len(), &mut bytes).is_ok());
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn frames_leave_in_order_after_partial_writes() -> Result<(), Malformed> {
        let payloads = [vec![1u8; 10], vec![2; MAX_COPIED + 1], vec![3; 100], vec![4; 3 * MAX_COPIED]];
        let expected: Vec<u8> = payloads.iter().flat_map(|p| alone(&offer("k"), p)).collect();
        for step in [997, 20_000, usize::MAX] {
            let mut outbox = Outbox::default();
            for payload in &payloads {
                outbox.add(&offer("k"), Some(payload.clone().into()), usize::MAX)?;
            }
            assert_eq!(outbox.len(), expected.len());
            let mut got = Vec::new();
            while let NextWrite::Slices(slices) = outbox.next() {
                let offered: Vec<u8> = slices.iter().flat_map(|s| s.to_vec()).collect();
                let taken = offered.len().min(step);
                got.extend_from_slice(&offered[..taken]);
                outbox.advance(taken);
            }
            assert!(outbox.is_empty() && outbox.len == 0 && got == expected, "{step}");
        }
        Ok(())
    }

    #[test]
    fn small_frames_are_one_slice_and_large_payloads_are_not_copied() -> Result<(), Malformed> {
        let mut outbox = Outbox::default();
        for i in 0..200 {
            outbox.add(&offer(&format!("k{i}")), Some(vec![0; 1000].into()), usize::MAX)?;
        }
        assert!(matches!(outbox.next(), NextWrite::Slices(slices) if slices.len() == 1));
        let large = Bytes::from(vec![0; 1 << 20]);
        let address = large.as_ptr();
        outbox.add(&offer("large"), Some(large), usize::MAX)?;
        assert!(matches!(outbox.next(), NextWrite::Slices(slices) if slices[1].as_ptr() == address));
        Ok(())
    }

    #[test]
    fn descriptors_and_parallel_payloads_are_written_alone() -> Result<(), Box<dyn std::error::Error>> {
        let mut outbox = Outbox::default();
        let (reader, _writer) = std::io::pipe()?;
        outbox.add(&offer("a"), None, 100)?;
        outbox.add_descriptor(&Frame::Block { block: 1, len: 2, kind: MemoryKind::Host }, reader.into())?;
        outbox.add(&offer("b"), Some(vec![9; MAX_COPIED + 1].into()), MAX_COPIED)?;
        let mut later = Outbox::default();
        later.add(&offer("c"), None, 100)?;
        outbox.append(later);
        let mut kinds = Vec::new();
        loop {
            let len = match outbox.next() {
                NextWrite::Nothing => break,
                NextWrite::Slices(slices) => (slices.iter().map(|s| s.len()).sum(), "slices"),
                NextWrite::WithDescriptor(bytes, _) => (bytes.len(), "descriptor"),
                NextWrite::Parallel(bytes) => (bytes.len(), "parallel"),
            };
            outbox.advance(len.0);
            kinds.push(len.1);
        }
        assert_eq!(kinds, ["slices", "descriptor", "slices", "parallel", "slices"]);
        Ok(())
    }
}
