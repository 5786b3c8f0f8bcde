//! What a connection is about: bytes of the client in, calls out of them; answers in, bytes for the client out of them.
//! No sockets here.

use crate::errand::Errand;
use crate::frame::{self, HEAD, Head, PREFACE, Reason, Violation, kind, setting};
use crate::hpack::{Decoder, Field};
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
/// The fields of a call, as they come, bytes. No frame but of messages is longer.
const MOST_FIELDS: usize = 64 << 10;
/// The largest request, bytes: the format's own limit, and gRPC's head.
const MOST_REQUEST: usize = (1 << 31) - 1 + 5;
/// No more is laid out for the socket at a time, bytes.
const LAID_OUT: usize = 1 << 20;
/// Who streams an answer goes on when there is less to send than this, bytes.
const LOW: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct State {
    streams: FxHashMap<u32, Stream>,
    fields: Decoder,
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
    /// Newer streams than this are refused: the server stops.
    leaves_after: Option<u32>,
    pub(crate) is_broken: bool,
    /// A task waits until the socket takes more.
    pub(crate) is_stuck: bool,
    /// To be woken when the state is free.
    pub(crate) woken: Vec<Waker>,
}

/// What the next bytes of the client are.
#[derive(Debug)]
enum Coming {
    Preface,
    Head,
    /// The payload of a frame that is taken whole.
    Frame(Head),
    /// The fields of a stream go on; the block so far.
    Fields {
        head: Head,
        block: Vec<u8>,
    },
    Continuation {
        next: Head,
        head: Head,
        block: Vec<u8>,
    },
    /// So many bytes of a message, and of what fills the frame.
    Data {
        stream: u32,
        left: usize,
        filling: usize,
        ends: bool,
    },
    Filled {
        head: Head,
    },
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
            last: 0,
            coming: Coming::Preface,
            window: WINDOW,
            untold: 0,
            out,
            out_window: FIRST_WINDOW.into(),
            out_first_window: FIRST_WINDOW.into(),
            out_frame: FIRST_FRAME,
            line: VecDeque::new(),
            leaves_after: None,
            is_broken: false,
            is_stuck: false,
            woken: Vec::new(),
        }
    }

    /// Takes what it can of the client's bytes, and tells how many. What is left is the beginning of something.
    ///
    /// # Errors
    /// For what no client may send: then the connection ends.
    pub(crate) fn hear(&mut self, bytes: &[u8], heard: &mut Heard) -> Result<usize, Violation> {
        let mut rest = bytes;
        while self.hear_next(&mut rest, heard)? {}
        Ok(bytes.len() - rest.len())
    }

    /// False where the rest is too short.
    fn hear_next(&mut self, rest: &mut &[u8], heard: &mut Heard) -> Result<bool, Violation> {
        match &mut self.coming {
            Coming::Preface => {
                let start = &rest[..rest.len().min(PREFACE.len())];
                if !PREFACE.starts_with(start) {
                    return Err(Violation::protocol("the first bytes, which are not of HTTP/2"));
                }
                if start.len() < PREFACE.len() {
                    return Ok(false);
                }
                *rest = &rest[PREFACE.len()..];
                self.coming = Coming::Head;
            }
            Coming::Head => {
                let Some((head, behind)) = rest.split_first_chunk::<HEAD>() else { return Ok(false) };
                *rest = behind;
                self.coming = begin(Head::read(head))?;
            }
            Coming::Fields { .. } => {
                let Some((next, behind)) = rest.split_first_chunk::<HEAD>() else { return Ok(false) };
                *rest = behind;
                let next = Head::read(next);
                let Coming::Fields { head, block } = std::mem::replace(&mut self.coming, Coming::Head) else {
                    return Ok(true);
                };
                if next.kind != kind::CONTINUATION || next.stream != head.stream {
                    return Err(Violation::protocol("a frame between those of one call's fields"));
                }
                if block.len() + next.len > MOST_FIELDS {
                    return Err(too_many_fields());
                }
                self.coming = Coming::Continuation { next, head, block };
            }
            Coming::Continuation { next, .. } => {
                let Some((payload, behind)) = rest.split_at_checked(next.len) else { return Ok(false) };
                *rest = behind;
                let Coming::Continuation { next, head, mut block } =
                    std::mem::replace(&mut self.coming, Coming::Head)
                else {
                    return Ok(true);
                };
                block.extend_from_slice(payload);
                match next.is(frame::END_HEADERS) {
                    true => self.hear_fields(head, &block, heard)?,
                    // One that is empty and not the last leads nowhere.
                    false if payload.is_empty() => return Err(too_many_fields()),
                    false => self.coming = Coming::Fields { head, block },
                }
            }
            Coming::Frame(head) => {
                let Some((payload, behind)) = rest.split_at_checked(head.len) else { return Ok(false) };
                let head = *head;
                *rest = behind;
                self.coming = Coming::Head;
                self.hear_frame(head, payload, heard)?;
            }
            Coming::Filled { head } => {
                let Some((&filling, behind)) = rest.split_first() else { return Ok(false) };
                let head = *head;
                let filling = usize::from(filling);
                let left = (head.len - 1).checked_sub(filling);
                let left =
                    left.ok_or(Violation::protocol("a frame that is filled with more than it holds"))?;
                *rest = behind;
                self.begin_data(head, 1, heard)?;
                let ends = head.is(frame::END_STREAM);
                self.coming = Coming::Data { stream: head.stream, left, filling, ends };
            }
            &mut Coming::Data { stream, left, filling, ends } => {
                let now = rest.len().min(left);
                if now < left && now == 0 {
                    return Ok(false);
                }
                let (payload, behind) = rest.split_at(now);
                *rest = behind;
                self.hear_data(stream, payload, heard)?;
                let left = left - now;
                self.coming = Coming::Data { stream, left, filling, ends };
                if left > 0 {
                    return Ok(false);
                }
                let now = rest.len().min(filling);
                *rest = &rest[now..];
                self.release(stream, now as u32);
                self.coming = Coming::Data { stream, left, filling: filling - now, ends };
                if now < filling {
                    return Ok(false);
                }
                self.coming = Coming::Head;
                if ends {
                    self.end_request(stream);
                }
            }
        }
        // A frame of a message is taken as its bytes come.
        if let Coming::Frame(head) = self.coming
            && head.kind == kind::DATA
        {
            self.coming = match head.is(frame::PADDED) {
                true => Coming::Filled { head },
                false => {
                    self.begin_data(head, 0, heard)?;
                    let ends = head.is(frame::END_STREAM);
                    Coming::Data { stream: head.stream, left: head.len, filling: 0, ends }
                }
            };
        }
        Ok(true)
    }

    /// A frame of a message has begun; `own` of its bytes are none of the message and have come.
    fn begin_data(&mut self, head: Head, own: u32, heard: &mut Heard) -> Result<(), Violation> {
        let too_much = Violation {
            reason: Reason::FLOW_CONTROL_ERROR,
            what: "more of messages than there was room for",
        };
        if head.stream == 0 || head.stream > self.last {
            return Err(Violation::protocol("a message of no call"));
        }
        let len = head.len as u32;
        self.window = self.window.checked_sub(len).ok_or(too_much)?;
        if let Some(stream) = self.streams.get_mut(&head.stream) {
            if stream.request.has_ended {
                self.end_stream(head.stream, Reason::STREAM_CLOSED, heard);
            } else {
                stream.request.window = stream.request.window.checked_sub(len).ok_or(too_much)?;
            }
        }
        self.release(head.stream, own);
        Ok(())
    }

    fn hear_data(&mut self, id: u32, payload: &[u8], heard: &mut Heard) -> Result<(), Violation> {
        let Some(stream) = self.streams.get_mut(&id) else {
            // What a call that is over would have taken.
            self.release(id, payload.len() as u32);
            return Ok(());
        };
        let request = &mut stream.request;
        if request.held.len() + payload.len() > MOST_REQUEST || !request.hold(payload) {
            self.release(id, payload.len() as u32);
            self.end_stream(id, Reason::ENHANCE_YOUR_CALM, heard);
            return Ok(());
        }
        if request.is_wanted_whole {
            self.release(id, payload.len() as u32);
        } else {
            self.woken.extend(request.reader.take());
        }
        Ok(())
    }

    fn hear_frame(&mut self, head: Head, payload: &[u8], heard: &mut Heard) -> Result<(), Violation> {
        let on_connection = head.stream == 0;
        match head.kind {
            kind::HEADERS => {
                let block = fields_of(head, payload)?;
                match head.is(frame::END_HEADERS) {
                    true => self.hear_fields(head, block, heard)?,
                    false => self.coming = Coming::Fields { head, block: block.to_vec() },
                }
            }
            kind::PRIORITY if on_connection => return Err(Violation::protocol("a priority of no stream")),
            kind::PRIORITY if payload.len() != 5 => {
                self.end_stream(head.stream, Reason::FRAME_SIZE_ERROR, heard);
            }
            kind::RST_STREAM => {
                frame::number(payload)?;
                if on_connection || head.stream > self.last {
                    return Err(Violation::protocol("the end of no stream"));
                }
                self.forget(head.stream, heard);
            }
            kind::SETTINGS if !on_connection => return Err(Violation::protocol("settings of a stream")),
            kind::SETTINGS if head.is(frame::ACK) && payload.is_empty() => {}
            kind::SETTINGS if head.is(frame::ACK) => {
                return Err(Violation::size("taken note of settings, with some"));
            }
            kind::SETTINGS => self.hear_settings(payload)?,
            kind::PUSH_PROMISE => return Err(Violation::protocol("a promise, which is the server's")),
            kind::PING if !on_connection => return Err(Violation::protocol("a ping of a stream")),
            kind::PING if payload.len() != 8 => return Err(Violation::size("a ping")),
            kind::PING if head.is(frame::ACK) => {}
            kind::PING => self.out.put(|out| frame::put(kind::PING, frame::ACK, 0, payload, out)),
            kind::GOAWAY if !on_connection => return Err(Violation::protocol("a stream's leave")),
            kind::WINDOW_UPDATE => self.hear_window(head.stream, payload, heard)?,
            kind::CONTINUATION => return Err(Violation::protocol("fields that nothing begins")),
            // What is not known means nothing.
            _ => {}
        }
        Ok(())
    }

    /// All fields of a call have come, or those behind its messages.
    fn hear_fields(&mut self, head: Head, block: &[u8], heard: &mut Heard) -> Result<(), Violation> {
        let reason = Reason::COMPRESSION_ERROR;
        let fields = self.fields.decode(block).map_err(|e| Violation { reason, what: e.0 })?;
        let (id, ends) = (head.stream, head.is(frame::END_STREAM));
        if id.is_multiple_of(2) {
            return Err(Violation::protocol("a stream's number"));
        }
        if id <= self.last {
            match self.streams.get(&id) {
                Some(stream) if ends && !stream.request.has_ended => self.end_request(id),
                Some(_) => self.end_stream(id, Reason::PROTOCOL_ERROR, heard),
                // They may have crossed the end of the stream.
                None => {}
            }
            return Ok(());
        }
        self.last = id;
        if self.leaves_after.is_some() || self.streams.len() >= STREAMS {
            self.reset(id, Reason::REFUSED_STREAM);
            return Ok(());
        }
        let mut stream = Stream::new(WINDOW, self.out_first_window);
        stream.request.has_ended = ends;
        self.streams.insert(id, stream);
        heard.begun.push((id, fields));
        Ok(())
    }

    fn hear_settings(&mut self, payload: &[u8]) -> Result<(), Violation> {
        let (settings, []) = payload.as_chunks::<6>() else { return Err(Violation::size("settings")) };
        for [a, b, value @ ..] in settings {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([*a, *b]) {
                setting::INITIAL_WINDOW_SIZE => {
                    if value > WINDOW {
                        let reason = Reason::FLOW_CONTROL_ERROR;
                        return Err(Violation { reason, what: "the size of a window" });
                    }
                    let more = i64::from(value) - self.out_first_window;
                    self.out_first_window = value.into();
                    for (id, stream) in &mut self.streams {
                        stream.answer.window += more;
                        queue(&mut self.line, *id, stream);
                    }
                }
                setting::MAX_FRAME_SIZE => {
                    if !(FIRST_FRAME as u32..1 << 24).contains(&value) {
                        return Err(Violation::protocol("the size of frames"));
                    }
                    self.out_frame = (value as usize).min(FRAME);
                }
                setting::ENABLE_PUSH if value > 1 => return Err(Violation::protocol("a setting")),
                // The others are for what is not used here.
                _ => {}
            }
        }
        self.out.put(|out| frame::put(kind::SETTINGS, frame::ACK, 0, &[], out));
        Ok(())
    }

    fn hear_window(&mut self, id: u32, payload: &[u8], heard: &mut Heard) -> Result<(), Violation> {
        let more = frame::number(payload)? & WINDOW;
        if id == 0 {
            self.out_window += i64::from(more);
            if more == 0 || self.out_window > WINDOW.into() {
                let reason = if more == 0 { Reason::PROTOCOL_ERROR } else { Reason::FLOW_CONTROL_ERROR };
                return Err(Violation { reason, what: "a window's growth" });
            }
            return Ok(());
        }
        if id > self.last {
            return Err(Violation::protocol("the window of no stream"));
        }
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        stream.answer.window += i64::from(more);
        if more == 0 {
            self.end_stream(id, Reason::PROTOCOL_ERROR, heard);
        } else if stream.answer.window > WINDOW.into() {
            self.end_stream(id, Reason::FLOW_CONTROL_ERROR, heard);
        } else {
            queue(&mut self.line, id, stream);
        }
        Ok(())
    }

    fn end_request(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.request.has_ended = true;
            self.woken.extend(stream.request.reader.take());
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

    /// The whole request of a call, if it has come.
    pub(crate) fn whole_request(&mut self, id: u32) -> Option<Bytes> {
        let request = &mut self.streams.get_mut(&id)?.request;
        if !request.has_ended {
            return None;
        }
        let held = std::mem::take(&mut request.held);
        self.release(id, held.len() as u32);
        Some(held.into())
    }

    /// What has come of a request, or all of it; else the waker is woken when there is more.
    pub(crate) fn next_part(&mut self, id: u32, is_wanted_whole: bool, waker: &Waker) -> Option<Part> {
        let Some(Stream { request, .. }) = self.streams.get_mut(&id) else { return Some(Part::Gone) };
        let newly_whole = is_wanted_whole && !request.is_wanted_whole;
        let was_released = request.is_wanted_whole;
        request.is_wanted_whole = is_wanted_whole;
        if request.has_ended || (!is_wanted_whole && !request.held.is_empty()) {
            if request.held.is_empty() {
                return Some(Part::End);
            }
            let held = std::mem::take(&mut request.held);
            if !was_released {
                self.release(id, held.len() as u32);
            }
            return Some(Part::Bytes(held.into()));
        }
        request.reader = Some(waker.clone());
        if newly_whole {
            let held = request.held.len() as u32;
            self.release(id, held);
        }
        None
    }

    /// Remembers what answers a call, if it is not answered yet.
    pub(crate) fn set_work(&mut self, id: u32, work: Arc<Errand>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.work = Some(work);
        }
    }

    /// Begins an answer by a block of fields. False if nobody wants it any more.
    pub(crate) fn begin_answer(&mut self, id: u32, block: &[u8], ends: bool) -> bool {
        if !self.streams.contains_key(&id) {
            return false;
        }
        self.put_fields(id, block, ends);
        if ends {
            self.answered(id);
        }
        true
    }

    /// Goes on with an answer that has begun; trailers end it.
    pub(crate) fn go_on(&mut self, id: u32, bytes: Bytes, trailers: Option<Vec<u8>>) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        stream.answer.add(bytes);
        if trailers.is_some() {
            stream.answer.trailers = trailers;
        }
        queue(&mut self.line, id, stream);
        true
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
                self.put_fields(id, &trailers, true);
                self.answered(id);
            }
        }
    }

    fn put_fields(&mut self, stream: u32, block: &[u8], ends: bool) {
        let ends = if ends { frame::END_STREAM } else { 0 };
        let frame_len = self.out_frame;
        self.out.put(|out| {
            let mut parts = block.chunks(frame_len).peekable();
            let (mut kind, mut flags) = (kind::HEADERS, ends);
            while let Some(part) = parts.next() {
                if parts.peek().is_none() {
                    flags |= frame::END_HEADERS;
                }
                frame::put(kind, flags, stream, part, out);
                (kind, flags) = (kind::CONTINUATION, 0);
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
        self.leaves_after.get_or_insert(self.last);
        let payload = [&self.last.to_be_bytes()[..], &reason.0.to_be_bytes(), why.as_bytes()].concat();
        self.out.put(|out| frame::put(kind::GOAWAY, 0, 0, &payload, out));
    }

    /// The server stops, and nothing is left to do here.
    pub(crate) fn is_over(&self) -> bool {
        self.leaves_after.is_some() && self.streams.is_empty() && self.out.is_empty()
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

/// What is to come behind a frame's head.
fn begin(head: Head) -> Result<Coming, Violation> {
    match head.kind {
        _ if head.len > FRAME => Err(Violation::size("a frame")),
        kind::DATA if head.is(frame::PADDED) && head.len == 0 => {
            Err(Violation::size("a frame that is filled"))
        }
        kind::HEADERS if head.len > MOST_FIELDS => Err(too_many_fields()),
        kind::DATA | kind::HEADERS => Ok(Coming::Frame(head)),
        _ if head.len > MOST_FIELDS => Err(Violation::size("a frame of no message")),
        _ => Ok(Coming::Frame(head)),
    }
}

fn too_many_fields() -> Violation {
    Violation { reason: Reason::ENHANCE_YOUR_CALM, what: "a call's fields: there are too many" }
}

/// A block without what may stand around it in its frame.
fn fields_of(head: Head, payload: &[u8]) -> Result<&[u8], Violation> {
    const FILLED: Violation = Violation {
        reason: Reason::PROTOCOL_ERROR,
        what: "fields with more around them than they have room for",
    };
    let mut block = payload;
    let mut filling = 0;
    if head.is(frame::PADDED) {
        let (first, behind) = block.split_first().ok_or(FILLED)?;
        (filling, block) = (usize::from(*first), behind);
    }
    if head.is(frame::WITH_PRIORITY) {
        block = block.get(5..).ok_or(FILLED)?;
    }
    let len = block.len().checked_sub(filling).ok_or(FILLED)?;
    Ok(&block[..len])
}

/// Puts a stream into the line, if it has something to send.
fn queue(line: &mut VecDeque<u32>, id: u32, stream: &mut Stream) {
    let answer = &mut stream.answer;
    if !answer.is_queued && (!answer.pending.is_empty() || answer.trailers.is_some()) {
        answer.is_queued = true;
        line.push_back(id);
    }
}
