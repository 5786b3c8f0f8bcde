//! The sending side of a connection's state: answers become frames as far as the client's flow-control
//! windows allow.

use super::{ConnectionState, enqueue};
use crate::frame::{self, Reason, kind};
use crate::hpack::Encoder;
use crate::stream::Trailers;
use bytes::Bytes;
use std::task::Waker;

/// Number of bytes in the outbox above which no further frames of queued answers are added to it.
const MAX_IN_OUTBOX: usize = 1 << 20;
/// Pending bytes of a streamed answer below which its writer continues.
const LOW_WATER: usize = 64 << 10;

impl ConnectionState {
    /// Begins the answer of stream `id` with a header block, which is the whole answer if `ends`. Returns
    /// false if the stream has been removed.
    pub(crate) fn begin_answer(&mut self, id: u32, block: &[u8], ends: bool) -> bool {
        if !self.streams.contains_key(&id) {
            return false;
        }
        self.put_fields(id, ends, |_, out| out.extend_from_slice(block));
        if ends {
            self.finish_answer(id);
        }
        true
    }

    /// Appends bytes to an answer that has begun; `trailers` end the answer.
    pub(crate) fn continue_answer(&mut self, id: u32, bytes: Bytes, trailers: Option<Trailers>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.answer.add(bytes);
        stream.answer.trailers = trailers;
        enqueue(&mut self.send_queue, id, stream);
    }

    /// Queues a successful answer of one message, which begins with gRPC's message header.
    pub(crate) fn answer(&mut self, id: u32, message: impl IntoIterator<Item = Bytes>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        for piece in message {
            stream.answer.add(piece);
        }
        stream.answer.trailers = Some(Trailers::Ok);
        enqueue(&mut self.send_queue, id, stream);
        self.put_fields(id, false, Encoder::put_answer_fields);
    }

    /// Returns whether a streamed answer may continue; if not, `waker` is woken once it may. `None` if the
    /// stream has been removed.
    pub(crate) fn poll_capacity(&mut self, id: u32, waker: &Waker) -> Option<bool> {
        let answer = &mut self.streams.get_mut(&id)?.answer;
        let may = answer.pending_len < LOW_WATER;
        if !may {
            answer.writer = Some(waker.clone());
        }
        Some(may)
    }

    /// Moves queued answers to the outbox as frames, as far as the flow-control windows allow.
    pub(crate) fn fill_outbox(&mut self) {
        while self.out.len() < MAX_IN_OUTBOX
            && let Some(&id) = self.send_queue.front()
        {
            let Some(stream) = self.streams.get_mut(&id) else {
                self.send_queue.pop_front();
                continue;
            };
            let answer = &mut stream.answer;
            if answer.pending_len > 0 && answer.window > 0 && self.out_window <= 0 {
                // The connection's window is exhausted, so all queued streams wait for it.
                return;
            }
            self.send_queue.pop_front();
            answer.is_queued = false;
            let room = self.out_window.min(answer.window).max(0) as usize;
            if room > 0
                && let Some(bytes) = answer.take_up_to(room.min(self.max_out_frame))
            {
                self.out_window -= bytes.len() as i64;
                answer.window -= bytes.len() as i64;
                self.out.put_data(id, bytes);
                if answer.pending_len < LOW_WATER {
                    self.wakers.extend(answer.writer.take());
                }
            }
            if answer.pending_len > 0 {
                if answer.window > 0 {
                    enqueue(&mut self.send_queue, id, stream);
                }
            } else if let Some(trailers) = answer.trailers.take() {
                self.put_fields(id, true, |answers, out| match trailers {
                    Trailers::Ok => answers.put_ok_trailers(out),
                    Trailers::Block(block) => out.extend_from_slice(&block),
                });
                self.finish_answer(id);
            }
        }
    }

    /// Appends a HEADERS frame, with CONTINUATION frames if the block is longer than the client's largest
    /// frame.
    fn put_fields(&mut self, stream: u32, ends: bool, put: impl FnOnce(&mut Encoder, &mut Vec<u8>)) {
        self.header_block.clear();
        self.encoder.put_table_resize(&mut self.header_block);
        put(&mut self.encoder, &mut self.header_block);
        self.out.put(|out| {
            let (mut kind, mut flags) = (kind::HEADERS, if ends { frame::END_STREAM } else { 0 });
            let mut rest = &self.header_block[..];
            // The loop runs at least once, because an empty block needs a HEADERS frame too.
            loop {
                let (part, behind) = rest.split_at(rest.len().min(self.max_out_frame));
                if behind.is_empty() {
                    flags |= frame::END_HEADERS;
                }
                frame::put(kind, flags, stream, part, out);
                if behind.is_empty() {
                    return;
                }
                (kind, flags, rest) = (kind::CONTINUATION, 0, behind);
            }
        });
    }

    /// Removes a stream whose answer is complete, and resets it if the client has not sent its whole request.
    fn finish_answer(&mut self, id: u32) {
        if let Some(stream) = self.streams.remove(&id) {
            if !stream.request.has_ended {
                self.reset(id, Reason::NO_ERROR);
            }
            self.release_stream(id, stream);
        }
    }
}
