//! The buffers of one call's HTTP/2 stream: request bytes not yet read, and answer bytes not yet sent.

use crate::inline_task::InlineTask;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

/// Number of bytes of a message that must have arrived before memory for its announced length is reserved, so
/// that clients cannot exhaust the memory with announcements alone.
const MIN_RECEIVED: usize = 1 << 20;
/// Length of gRPC's message header, bytes: a compression flag and a 32-bit length.
pub(crate) const PREFIX: usize = 5;

/// The state of one call's stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) request: RequestBuffer,
    pub(crate) answer: AnswerBuffer,
    /// The future that answers the call, while it waits.
    pub(crate) work: Option<Arc<InlineTask>>,
}

/// The part of a request that the service has not yet read.
#[derive(Debug, Default)]
pub(crate) struct RequestBuffer {
    /// The bytes that have arrived and have not been read.
    pub(crate) buffered: Vec<u8>,
    pub(crate) has_ended: bool,
    /// Set when the service waits for the complete request.
    pub(crate) is_read_whole: bool,
    pub(crate) reader: Option<Waker>,
    /// The flow-control window of the stream for its request: number of bytes that the client may still send.
    pub(crate) window: u32,
    /// Number of bytes that were read or discarded and not yet granted to the client again by a
    /// WINDOW_UPDATE.
    pub(crate) released: u32,
}

/// The part of an answer that has not yet been sent.
#[derive(Debug)]
pub(crate) struct AnswerBuffer {
    pub(crate) pending: VecDeque<Bytes>,
    pub(crate) pending_len: usize,
    pub(crate) trailers: Option<Trailers>,
    /// The flow-control window of the stream for its answer: number of bytes that the client still accepts;
    /// may be negative after the client has reduced its initial window.
    pub(crate) window: i64,
    /// Set while the stream is in the connection's send queue.
    pub(crate) is_queued: bool,
    /// The waker of the task that streams the answer, while it waits until fewer bytes are pending.
    pub(crate) writer: Option<Waker>,
}

/// The header block that ends an answer.
#[derive(Debug)]
pub(crate) enum Trailers {
    Ok,
    /// A header block in encoded form.
    Block(Vec<u8>),
}

impl Stream {
    pub(crate) fn new(request_window: u32, answer_window: i64) -> Stream {
        Stream {
            request: RequestBuffer { window: request_window, ..RequestBuffer::default() },
            answer: AnswerBuffer {
                pending: VecDeque::new(),
                pending_len: 0,
                trailers: None,
                window: answer_window,
                is_queued: false,
                writer: None,
            },
            work: None,
        }
    }
}

impl RequestBuffer {
    /// Appends received bytes. Returns false if there is no memory for them.
    pub(crate) fn try_buffer(&mut self, bytes: &[u8]) -> bool {
        if self.buffered.capacity() - self.buffered.len() < bytes.len() {
            let more = match self.announced_len() {
                Some(len) if self.buffered.len() >= MIN_RECEIVED => len.saturating_sub(self.buffered.len()),
                Some(len) => len.min(MIN_RECEIVED).saturating_sub(self.buffered.len()),
                None => 0,
            };
            let reserved = match more >= bytes.len() {
                true => self.buffered.try_reserve_exact(more),
                false => self.buffered.try_reserve(bytes.len()),
            };
            if reserved.is_err() {
                return false;
            }
        }
        self.buffered.extend_from_slice(bytes);
        true
    }

    /// Returns the length of the first message with its header, which the header announces, bytes; `None` if
    /// the header is incomplete.
    fn announced_len(&self) -> Option<usize> {
        let [_, len @ ..] = *self.buffered.first_chunk::<PREFIX>()?;
        Some(PREFIX + u32::from_be_bytes(len) as usize)
    }
}

impl AnswerBuffer {
    pub(crate) fn add(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.pending_len += bytes.len();
            self.pending.push_back(bytes);
        }
    }

    /// Removes and returns the next pending bytes, at most `most`.
    pub(crate) fn take_up_to(&mut self, most: usize) -> Option<Bytes> {
        let front = self.pending.front_mut()?;
        let taken = if front.len() <= most { self.pending.pop_front()? } else { front.split_to(most) };
        self.pending_len -= taken.len();
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announced_lengths_are_trusted_after_a_part_has_arrived() {
        let mut request = RequestBuffer::default();
        assert!(request.try_buffer(&[0, 0x7f, 0xff, 0xff, 0xff]));
        assert!(request.try_buffer(&[1; 1000]) && request.buffered.capacity() <= MIN_RECEIVED + 1000);
        // Once [`MIN_RECEIVED`] bytes have arrived, memory for the announced length is reserved, and the
        // buffer does not move again.
        let mut request = RequestBuffer::default();
        assert!(
            request.try_buffer(&[0, 0, 0x40, 0, 0])
                && request.try_buffer(&[0; MIN_RECEIVED])
                && request.try_buffer(&[0; 1])
        );
        let place = request.buffered.as_ptr();
        assert!(request.try_buffer(&[0; 2 * MIN_RECEIVED]) && request.buffered.as_ptr() == place);
    }
}
