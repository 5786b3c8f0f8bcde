//! What a connection is about: bytes of the client in, calls out of them; answers in, bytes for the client out of them.
//! No sockets here.

mod answer;
mod hear;
#[cfg(test)]
mod tests;

use self::hear::Coming;
use crate::errand::Errand;
use crate::frame::{self, Reason, kind, setting};
use crate::hpack::{Decoder, Encoder, Field};
use crate::outbox::Outbox;
use crate::stream::Stream;
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

/// Flow-control windows of requests, bytes: the protocol's largest, since a tensor is wanted whole.
const WINDOW: u32 = (1 << 31) - 1;
/// Bytes that either end may send unasked.
const FIRST_WINDOW: u32 = 65_535;
/// Frames that the client may send, bytes: larger ones measure no better.
const FRAME: usize = 1 << 20;
/// Frames that a client takes unasked, bytes.
const FIRST_FRAME: usize = 16_384;
/// Receives wait in streams of their own until their value is there: there may be as many as there are edges.
const STREAMS: usize = 1 << 24;

#[derive(Debug)]
pub(crate) struct State {
    streams: FxHashMap<u32, Stream>,
    fields: Decoder,
    answers: Encoder,
    /// The block of fields that is written.
    block: Vec<u8>,
    /// The highest number of a stream.
    last: u32,
    coming: Coming,
    /// Bytes that the client may still send, and those that were taken and it does not know of.
    window: u32,
    untold: u32,
    pub(crate) out: Outbox,
    /// Bytes that the client takes, of all streams together, and of each when it begins.
    out_window: i64,
    out_first_window: i64,
    out_frame: usize,
    /// Streams that have something to send.
    line: VecDeque<u32>,
    /// The server stops, or the client has done what none may: newer streams are refused.
    is_leaving: bool,
    pub(crate) is_broken: bool,
    /// A task waits until the socket takes more.
    pub(crate) is_stuck: bool,
    /// To be woken when the state is free.
    pub(crate) woken: Vec<Waker>,
}

/// What a client's bytes lead to.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// Streams of new calls, with their fields.
    pub(crate) begun: Vec<(u32, Vec<Field>)>,
    /// Calls that the client wants no more.
    pub(crate) given_up: Vec<Arc<Errand>>,
}

/// A part of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Bytes(Bytes),
    End,
    /// The stream is no more.
    Gone,
}

impl State {
    /// With what a server says first.
    pub(crate) fn new() -> State {
        let mut out = Outbox::default();
        let settings = [
            (setting::MAX_CONCURRENT_STREAMS, STREAMS as u32),
            (setting::INITIAL_WINDOW_SIZE, WINDOW),
            (setting::MAX_FRAME_SIZE, FRAME as u32),
        ];
        let mut payload = Vec::new();
        for (number, value) in settings {
            payload.extend_from_slice(&number.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        out.put(|out| {
            frame::put(kind::SETTINGS, 0, 0, &payload, out);
            frame::put(kind::WINDOW_UPDATE, 0, 0, &(WINDOW - FIRST_WINDOW).to_be_bytes(), out);
        });
        State {
            streams: FxHashMap::default(),
            fields: Decoder::new(),
            answers: Encoder::default(),
            block: Vec::new(),
            last: 0,
            coming: Coming::Preface,
            window: WINDOW,
            untold: 0,
            out,
            out_window: FIRST_WINDOW.into(),
            out_first_window: FIRST_WINDOW.into(),
            out_frame: FIRST_FRAME,
            line: VecDeque::new(),
            is_leaving: false,
            is_broken: false,
            is_stuck: false,
            woken: Vec::new(),
        }
    }

    /// Remembers what answers a call, if it is not answered yet.
    pub(crate) fn set_work(&mut self, id: u32, work: Arc<Errand>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.work = Some(work);
        }
    }

    /// So many bytes of a stream have been taken up, or are of no use.
    fn release(&mut self, id: u32, bytes: u32) {
        let told = |window: &mut u32, untold: &mut u32, id: u32, out: &mut Outbox| {
            *untold += bytes;
            if *untold > WINDOW / 2 {
                *window += *untold;
                let more = std::mem::take(untold).to_be_bytes();
                out.put(|out| frame::put(kind::WINDOW_UPDATE, 0, id, &more, out));
            }
        };
        told(&mut self.window, &mut self.untold, 0, &mut self.out);
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.request.has_ended
        {
            told(&mut stream.request.window, &mut stream.request.untold, id, &mut self.out);
        }
    }

    /// Ends a stream because of what its client did.
    fn end_stream(&mut self, id: u32, reason: Reason, heard: &mut Heard) {
        if self.forget(id, heard) {
            self.reset(id, reason);
        }
    }

    fn forget(&mut self, id: u32, heard: &mut Heard) -> bool {
        let Some(mut stream) = self.streams.remove(&id) else { return false };
        heard.given_up.extend(stream.work.take());
        self.leave_behind(id, stream);
        true
    }

    /// What a stream held serves others.
    fn leave_behind(&mut self, id: u32, stream: Stream) {
        if !stream.request.is_wanted_whole {
            self.release(id, stream.request.held.len() as u32);
        }
        self.woken.extend(stream.request.reader);
        self.woken.extend(stream.answer.writer);
    }

    fn reset(&mut self, id: u32, reason: Reason) {
        self.out.put(|out| frame::put(kind::RST_STREAM, 0, id, &reason.0.to_be_bytes(), out));
    }

    /// Asks whether the client is there.
    pub(crate) fn ping(&mut self) {
        self.out.put(|out| frame::put(kind::PING, 0, 0, &[0; 8], out));
    }

    /// Tells the client that the connection ends, for good or when the calls that it knows of are answered.
    pub(crate) fn leave(&mut self, reason: Reason, why: &str) {
        self.is_leaving = true;
        let payload = [&self.last.to_be_bytes()[..], &reason.0.to_be_bytes(), why.as_bytes()].concat();
        self.out.put(|out| frame::put(kind::GOAWAY, 0, 0, &payload, out));
    }

    /// The server stops, and nothing is left to do here.
    pub(crate) fn is_over(&self) -> bool {
        self.is_leaving && self.streams.is_empty() && self.out.is_empty()
    }

    /// Ends everything: gives what answered calls.
    pub(crate) fn end(&mut self) -> Vec<Arc<Errand>> {
        self.is_broken = true;
        self.out.clear();
        let streams = std::mem::take(&mut self.streams).into_values();
        let take = |mut stream: Stream| {
            self.woken.extend(stream.request.reader.take());
            self.woken.extend(stream.answer.writer.take());
            stream.work
        };
        streams.filter_map(take).collect()
    }
}

/// Puts a stream into the line, if it has something to send.
fn queue(line: &mut VecDeque<u32>, id: u32, stream: &mut Stream) {
    let answer = &mut stream.answer;
    if !answer.is_queued && (!answer.pending.is_empty() || answer.trailers.is_some()) {
        answer.is_queued = true;
        line.push_back(id);
    }
}
