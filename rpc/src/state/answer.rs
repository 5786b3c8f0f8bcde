//! Answers into bytes for the client, as its windows allow.

use super::{State, queue};
use crate::frame::{self, Reason, kind};
use crate::hpack::Encoder;
use crate::stream::Trailers;
use bytes::Bytes;
use std::task::Waker;

/// No more is laid out for the socket at a time, bytes.
const LAID_OUT: usize = 1 << 20;
/// Who streams an answer goes on when there is less to send than this, bytes.
const LOW: usize = 64 << 10;

impl State {
    /// Begins an answer by a block of fields. False if nobody wants it any more.
    pub(crate) fn begin_answer(&mut self, id: u32, block: &[u8], ends: bool) -> bool {
        if !self.streams.contains_key(&id) {
            return false;
        }
        self.put_fields(id, ends, |_, out| out.extend_from_slice(block));
        if ends {
            self.answered(id);
        }
        true
    }

    /// Goes on with an answer that has begun; trailers end it.
    pub(crate) fn go_on(&mut self, id: u32, bytes: Bytes, trailers: Option<Trailers>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.answer.add(bytes);
        stream.answer.trailers = trailers;
        queue(&mut self.line, id, stream);
    }

    /// Answers by one message, gRPC's head before it.
    pub(crate) fn answer(&mut self, id: u32, message: impl IntoIterator<Item = Bytes>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        for piece in message {
            stream.answer.add(piece);
        }
        stream.answer.trailers = Some(Trailers::Ok);
        queue(&mut self.line, id, stream);
        self.put_fields(id, false, Encoder::put_head);
    }

    /// Whether an answer may go on; else the waker is woken when it may. `None` if nobody wants it any more.
    pub(crate) fn may_go_on(&mut self, id: u32, waker: &Waker) -> Option<bool> {
        let answer = &mut self.streams.get_mut(&id)?.answer;
        let may = answer.pending_len < LOW;
        if !may {
            answer.writer = Some(waker.clone());
        }
        Some(may)
    }

    /// Lays out for the socket what the windows allow.
    pub(crate) fn lay_out(&mut self) {
        while self.out.len() < LAID_OUT
            && let Some(&id) = self.line.front()
        {
            let Some(stream) = self.streams.get_mut(&id) else {
                self.line.pop_front();
                continue;
            };
            let answer = &mut stream.answer;
            if answer.pending_len > 0 && answer.window > 0 && self.out_window <= 0 {
                // All wait for the same.
                return;
            }
            self.line.pop_front();
            answer.is_queued = false;
            let room = self.out_window.min(answer.window).max(0) as usize;
            if room > 0
                && let Some(bytes) = answer.take(room.min(self.out_frame))
            {
                self.out_window -= bytes.len() as i64;
                answer.window -= bytes.len() as i64;
                self.out.put_data(id, bytes);
                if answer.pending_len < LOW {
                    self.woken.extend(answer.writer.take());
                }
            }
            if answer.pending_len > 0 {
                if answer.window > 0 {
                    queue(&mut self.line, id, stream);
                }
            } else if let Some(trailers) = answer.trailers.take() {
                self.put_fields(id, true, |answers, out| match trailers {
                    Trailers::Ok => answers.put_ok(out),
                    Trailers::Block(block) => out.extend_from_slice(&block),
                });
                self.answered(id);
            }
        }
    }

    fn put_fields(&mut self, stream: u32, ends: bool, put: impl FnOnce(&mut Encoder, &mut Vec<u8>)) {
        self.block.clear();
        self.answers.begin(&mut self.block);
        put(&mut self.answers, &mut self.block);
        self.out.put(|out| {
            let (mut kind, mut flags) = (kind::HEADERS, if ends { frame::END_STREAM } else { 0 });
            let mut rest = &self.block[..];
            // A block without fields is one, too.
            loop {
                let (part, behind) = rest.split_at(rest.len().min(self.out_frame));
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

    /// All of an answer is laid out: what may still come of the request is of no use.
    fn answered(&mut self, id: u32) {
        if let Some(stream) = self.streams.remove(&id) {
            if !stream.request.has_ended {
                self.reset(id, Reason::NO_ERROR);
            }
            self.leave_behind(id, stream);
        }
    }
}
