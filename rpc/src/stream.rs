//! One call's stream: what has come of its request, and what has not left of its answer.

use crate::errand::Errand;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

/// Memory for a message that says it is larger is taken when so much of it has come, bytes.
const TRUSTED: usize = 1 << 20;
/// gRPC's own head of a message: whether it is compressed, and its length.
pub(crate) const PREFIX: usize = 5;

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) request: Request,
    pub(crate) answer: Answer,
    /// What answers the call, while it waits for something.
    pub(crate) work: Option<Arc<Errand>>,
}

#[derive(Debug, Default)]
pub(crate) struct Request {
    /// What has come and nobody has taken.
    pub(crate) held: Vec<u8>,
    pub(crate) has_ended: bool,
    /// Who reads it wants all of it at once.
    pub(crate) is_wanted_whole: bool,
    pub(crate) reader: Option<Waker>,
    /// Bytes that the client may still send, and those that were taken and it does not know of.
    pub(crate) window: u32,
    pub(crate) untold: u32,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) pending: VecDeque<Bytes>,
    pub(crate) pending_len: usize,
    pub(crate) trailers: Option<Trailers>,
    /// Bytes that the client takes; below nothing where it has changed its mind.
    pub(crate) window: i64,
    /// It stands in the line of those that have something to send.
    pub(crate) is_queued: bool,
    /// Who waits until there is less to send.
    pub(crate) writer: Option<Waker>,
}

/// What ends an answer.
#[derive(Debug)]
pub(crate) enum Trailers {
    Ok,
    /// A block of fields.
    Block(Vec<u8>),
}

impl Stream {
    pub(crate) fn new(request_window: u32, answer_window: i64) -> Stream {
        Stream {
            request: Request { window: request_window, ..Request::default() },
            answer: Answer {
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

impl Request {
    /// Keeps what came. False if there is no memory for it.
    pub(crate) fn hold(&mut self, bytes: &[u8]) -> bool {
        if self.held.capacity() - self.held.len() < bytes.len() {
            let more = match self.said() {
                Some(said) if self.held.len() >= TRUSTED => said.saturating_sub(self.held.len()),
                Some(said) => said.min(TRUSTED).saturating_sub(self.held.len()),
                None => 0,
            };
            let reserved = match more >= bytes.len() {
                true => self.held.try_reserve_exact(more),
                false => self.held.try_reserve(bytes.len()),
            };
            if reserved.is_err() {
                return false;
            }
        }
        self.held.extend_from_slice(bytes);
        true
    }

    /// How long the first message is, its head included, by its head.
    fn said(&self) -> Option<usize> {
        let [_, len @ ..] = *self.held.first_chunk::<PREFIX>()?;
        Some(PREFIX + u32::from_be_bytes(len) as usize)
    }
}

impl Answer {
    pub(crate) fn add(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.pending_len += bytes.len();
            self.pending.push_back(bytes);
        }
    }

    /// The next bytes, at most so many.
    pub(crate) fn take(&mut self, most: usize) -> Option<Bytes> {
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
    fn memory_is_taken_for_what_has_come() {
        let mut request = Request::default();
        assert!(request.hold(&[0, 0x7f, 0xff, 0xff, 0xff]));
        assert!(request.hold(&[1; 1000]) && request.held.capacity() <= TRUSTED + 1000);
        // The promise is believed once a part of it is there: then it is at its place to the end.
        let mut request = Request::default();
        assert!(request.hold(&[0, 0, 0x40, 0, 0]) && request.hold(&[0; TRUSTED]) && request.hold(&[0; 1]));
        let place = request.held.as_ptr();
        assert!(request.hold(&[0; 2 * TRUSTED]) && request.held.as_ptr() == place);
    }
}
