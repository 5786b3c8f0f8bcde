//! The frames that wait to be written to a connection: small frames are joined in one buffer, large payloads are not
//! copied.

use crate::frame::{FrameHeader, kind};
use bytes::Bytes;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Largest payload that is copied behind its frame header, bytes: copying fewer bytes costs less than writing
/// another slice.
const MAX_COPIED: usize = 4 << 10;
/// Largest number of slices that one vectored write has.
const MAX_SLICES: usize = 128;

/// A queue of bytes that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Bytes>,
    /// Encoded frames that are written after all `pieces`.
    tail: Vec<u8>,
    /// Number of bytes that have been written of the first piece, or of the tail if there are no pieces.
    written: usize,
    len: usize,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of bytes that wait to be written.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Calls `put` to append encoded frames.
    pub(crate) fn put(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let before = self.tail.len();
        put(&mut self.tail);
        self.len += self.tail.len() - before;
    }

    /// Appends a DATA frame with a part of a message.
    pub(crate) fn put_data(&mut self, stream: u32, payload: Bytes) {
        let header = FrameHeader { len: payload.len(), kind: kind::DATA, flags: 0, stream };
        if payload.len() <= MAX_COPIED {
            return self.put(|out| {
                header.put(out);
                out.extend_from_slice(&payload);
            });
        }
        self.put(|out| header.put(out));
        self.pieces.push_back(std::mem::take(&mut self.tail).into());
        self.len += payload.len();
        self.pieces.push_back(payload);
    }

    /// Returns the slices of the next vectored write.
    pub(crate) fn slices(&self) -> Vec<IoSlice<'_>> {
        let tail = (!self.tail.is_empty()).then_some(&self.tail[..]);
        let mut slices: Vec<_> = self
            .pieces
            .iter()
            .map(|piece| &piece[..])
            .chain(tail)
            .take(MAX_SLICES)
            .map(IoSlice::new)
            .collect();
        if let Some(first) = slices.first_mut() {
            first.advance(self.written);
        }
        slices
    }

    /// Removes the first `written` bytes of the queue, which have been written.
    pub(crate) fn advance(&mut self, written: usize) {
        self.len -= written.min(self.len);
        self.written += written;
        while let Some(first) = self.pieces.front()
            && self.written >= first.len()
        {
            self.written -= first.len();
            self.pieces.pop_front();
        }
        if self.is_empty() {
            // The tail is emptied but keeps its memory for the next answers.
            self.tail.clear();
            self.written = 0;
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Outbox::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_after_partial_writes() {
        for step in [997, 5000, 20_000, usize::MAX] {
            let mut outbox = Outbox::default();
            let mut expected = Vec::new();
            for (round, len) in [3, MAX_COPIED, MAX_COPIED + 1, 10, 3 * MAX_COPIED, 7].into_iter().enumerate()
            {
                let payload = vec![round as u8; len];
                FrameHeader { len, kind: kind::DATA, flags: 0, stream: 5 }.put(&mut expected);
                expected.extend_from_slice(&payload);
                outbox.put_data(5, payload.into());
            }
            let mut got = Vec::new();
            while !outbox.is_empty() {
                let offered: Vec<u8> = outbox.slices().iter().flat_map(|s| s.to_vec()).collect();
                let taken = offered.len().min(step);
                got.extend_from_slice(&offered[..taken]);
                outbox.advance(taken);
            }
            assert!(got == expected, "{step}");
        }
    }
}
