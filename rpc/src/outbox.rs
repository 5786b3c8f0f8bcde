//! What waits to be written to a connection: small frames side by side in one piece, large payloads where they lie.

use crate::frame::{Head, kind};
use bytes::Bytes;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Payloads up to here are copied behind their heads: a slice of their own costs more, bytes.
const COPIED: usize = 4 << 10;
/// Slices of one write.
const SLICES: usize = 128;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Bytes>,
    /// Behind all pieces.
    tail: Vec<u8>,
    /// Of the first piece, or of the tail where there is none, so much has been written.
    written: usize,
    len: usize,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that are to be written.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds what `put` writes.
    pub(crate) fn put(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let before = self.tail.len();
        put(&mut self.tail);
        self.len += self.tail.len() - before;
    }

    /// Adds a part of a message.
    pub(crate) fn put_data(&mut self, stream: u32, payload: Bytes) {
        let head = Head { len: payload.len(), kind: kind::DATA, flags: 0, stream };
        if payload.len() <= COPIED {
            return self.put(|out| {
                head.put(out);
                out.extend_from_slice(&payload);
            });
        }
        self.put(|out| head.put(out));
        self.pieces.push_back(std::mem::take(&mut self.tail).into());
        self.len += payload.len();
        self.pieces.push_back(payload);
    }

    /// What one write may take.
    pub(crate) fn slices(&self) -> Vec<IoSlice<'_>> {
        let tail = (!self.tail.is_empty()).then_some(&self.tail[..]);
        let mut slices: Vec<_> =
            self.pieces.iter().map(|piece| &piece[..]).chain(tail).take(SLICES).map(IoSlice::new).collect();
        if let Some(first) = slices.first_mut() {
            first.advance(self.written);
        }
        slices
    }

    /// So many bytes have been written.
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
            // Its memory serves the next answers.
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
    fn bytes_leave_in_order_whatever_a_write_takes() {
        for step in [997, 5000, 20_000, usize::MAX] {
            let mut outbox = Outbox::default();
            let mut expected = Vec::new();
            for (round, len) in [3, COPIED, COPIED + 1, 10, 3 * COPIED, 7].into_iter().enumerate() {
                let payload = vec![round as u8; len];
                Head { len, kind: kind::DATA, flags: 0, stream: 5 }.put(&mut expected);
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
