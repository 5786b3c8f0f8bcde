//! The protocol state of a connection, without a socket: received bytes become calls, and answers become
//! bytes to send.

mod answer;
mod read;
#[cfg(test)]
mod tests;

use self::read::ReadState;
use crate::frame::{self, Reason, kind, setting};
use crate::hpack::{Decoder, Encoder, Field};
use crate::inline_task::InlineTask;
use crate::outbox::Outbox;
use crate::stream::Stream;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

/// Flow-control window for requests, bytes: the protocol's largest, because a tensor is buffered whole before
/// it is used.
const WINDOW: u32 = (1 << 31) - 1;
/// Initial flow-control window of both ends, bytes (RFC 9113, section 6.9.2).
const INITIAL_WINDOW: u32 = 65_535;
/// Largest frame that the client may send, bytes. Larger frames were measured to be no faster.
const MAX_FRAME: usize = 1 << 20;
/// Largest frame that a client accepts unless its settings raise it, bytes.
const INITIAL_FRAME: usize = 16_384;
/// Largest number of concurrent streams. Each pending receive of a tensor holds a stream, so there may be one stream per
/// graph edge.
const MAX_STREAMS: usize = 1 << 24;

/// The protocol state of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    streams: FxHashMap<u32, Stream>,
    decoder: Decoder,
    encoder: Encoder,
    /// Scratch memory for the header block being encoded.
    header_block: Vec<u8>,
    /// The highest stream number that the client has used.
    last_stream: u32,
    read_state: ReadState,
    /// The flow-control window of the connection for requests: number of bytes that the client may still
    /// send.
    window: u32,
    /// Number of bytes that were read or discarded and not yet granted to the client again by a
    /// WINDOW_UPDATE.
    released: u32,
    pub(crate) out: Outbox,
    /// The flow-control window of the connection for answers: number of bytes that the client still accepts.
    out_window: i64,
    /// The initial flow-control window of a stream for answers, from the client's settings, bytes.
    initial_out_window: i64,
    max_out_frame: usize,
    /// The numbers of the streams that have bytes or trailers to send, in the order in which they may send next.
    send_queue: VecDeque<u32>,
    /// Set when the server stops or the client has violated the protocol: new streams are refused.
    is_leaving: bool,
    pub(crate) is_broken: bool,
    /// Set while an asynchronous task waits until the socket is writable; only that task writes then.
    pub(crate) is_write_blocked: bool,
    /// Wakers of tasks to wake once the lock of this state is released.
    pub(crate) wakers: Vec<Waker>,
}

/// The calls that received bytes begin or cancel.
#[derive(Debug, Default)]
pub(crate) struct ReadEvents {
    /// Streams of new calls, with their header fields.
    pub(crate) begun: Vec<(u32, Vec<Field>)>,
    /// The tasks of cancelled calls, which the connection must abort.
    pub(crate) given_up: Vec<Arc<InlineTask>>,
}

/// A part of a request's body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequestPart {
    Bytes(Bytes),
    End,
    /// The end of the call: its stream has been removed, so the rest of the request will not arrive.
    Gone,
}

impl ConnectionState {
    /// Returns the state of a new connection, with the server's settings queued.
    pub(crate) fn new() -> ConnectionState {
        let mut out = Outbox::default();
        let settings = [
            (setting::MAX_CONCURRENT_STREAMS, MAX_STREAMS as u32),
            (setting::INITIAL_WINDOW_SIZE, WINDOW),
            (setting::MAX_FRAME_SIZE, MAX_FRAME as u32),
        ];
        let mut payload = Vec::new();
        for (number, value) in settings {
            payload.extend_from_slice(&number.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        out.put(|out| {
            frame::put(kind::SETTINGS, 0, 0, &payload, out);
            frame::put(kind::WINDOW_UPDATE, 0, 0, &(WINDOW - INITIAL_WINDOW).to_be_bytes(), out);
        });
        ConnectionState {
            streams: FxHashMap::default(),
            decoder: Decoder::new(),
            encoder: Encoder::default(),
            header_block: Vec::new(),
            last_stream: 0,
            read_state: ReadState::Preface,
            window: WINDOW,
            released: 0,
            out,
            out_window: INITIAL_WINDOW.into(),
            initial_out_window: INITIAL_WINDOW.into(),
            max_out_frame: INITIAL_FRAME,
            send_queue: VecDeque::new(),
            is_leaving: false,
            is_broken: false,
            is_write_blocked: false,
            wakers: Vec::new(),
        }
    }

    /// Stores the future that answers a call, unless the call is already answered.
    pub(crate) fn set_work(&mut self, id: u32, work: Arc<InlineTask>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.work = Some(work);
        }
    }

    /// Counts bytes of a stream that were read or discarded, and grants all counted bytes to the client again
    /// by a WINDOW_UPDATE once they are half of the window.
    fn release_window(&mut self, id: u32, bytes: u32) {
        let grant = |window: &mut u32, released: &mut u32, id: u32, out: &mut Outbox| {
            *released += bytes;
            if *released > WINDOW / 2 {
                *window += *released;
                let more = std::mem::take(released).to_be_bytes();
                out.put(|out| frame::put(kind::WINDOW_UPDATE, 0, id, &more, out));
            }
        };
        grant(&mut self.window, &mut self.released, 0, &mut self.out);
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.request.has_ended
        {
            grant(&mut stream.request.window, &mut stream.request.released, id, &mut self.out);
        }
    }

    /// Cancels a call and resets its stream with an error code, because the client violated the protocol or a
    /// limit.
    fn end_stream(&mut self, id: u32, reason: Reason, events: &mut ReadEvents) {
        if self.remove_stream(id, events) {
            self.reset(id, reason);
        }
    }

    /// Removes a stream and cancels its call. Returns false if there is no such stream.
    fn remove_stream(&mut self, id: u32, events: &mut ReadEvents) -> bool {
        let Some(mut stream) = self.streams.remove(&id) else { return false };
        events.given_up.extend(stream.work.take());
        self.release_stream(id, stream);
        true
    }

    /// Wakes the tasks of a removed stream, and returns the request's unread bytes to the
    /// flow-control window of the client.
    fn release_stream(&mut self, id: u32, stream: Stream) {
        if !stream.request.is_read_whole {
            self.release_window(id, stream.request.buffered.len() as u32);
        }
        self.wakers.extend(stream.request.reader);
        self.wakers.extend(stream.answer.writer);
    }

    fn reset(&mut self, id: u32, reason: Reason) {
        self.out.put(|out| frame::put(kind::RST_STREAM, 0, id, &reason.0.to_be_bytes(), out));
    }

    /// Queues a PING, which a live client answers.
    pub(crate) fn ping(&mut self) {
        self.out.put(|out| frame::put(kind::PING, 0, 0, &[0; 8], out));
    }

    /// Queues a GOAWAY, which tells the client why the connection ends and the last stream that is answered.
    /// Later streams are refused.
    pub(crate) fn send_goaway(&mut self, reason: Reason, why: &str) {
        self.is_leaving = true;
        let payload = [&self.last_stream.to_be_bytes()[..], &reason.0.to_be_bytes(), why.as_bytes()].concat();
        self.out.put(|out| frame::put(kind::GOAWAY, 0, 0, &payload, out));
    }

    /// Returns whether the server is stopping and all calls of this connection are answered and written.
    pub(crate) fn is_over(&self) -> bool {
        self.is_leaving && self.streams.is_empty() && self.out.is_empty()
    }

    /// Removes all streams. Returns the futures that were answering their calls.
    pub(crate) fn remove_all(&mut self) -> Vec<Arc<InlineTask>> {
        self.is_broken = true;
        self.out.clear();
        let streams = std::mem::take(&mut self.streams).into_values();
        let take = |mut stream: Stream| {
            self.wakers.extend(stream.request.reader.take());
            self.wakers.extend(stream.answer.writer.take());
            stream.work
        };
        streams.filter_map(take).collect()
    }
}

/// Puts a stream into the send queue if it has bytes or trailers to send.
fn enqueue(line: &mut VecDeque<u32>, id: u32, stream: &mut Stream) {
    let answer = &mut stream.answer;
    if !answer.is_queued && (!answer.pending.is_empty() || answer.trailers.is_some()) {
        answer.is_queued = true;
        line.push_back(id);
    }
}
