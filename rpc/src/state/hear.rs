//! A client's bytes into calls, and into parts of their requests.

use super::{FIRST_FRAME, FRAME, Heard, Part, STREAMS, State, WINDOW, queue};
use crate::frame::{self, HEAD, Head, PREFACE, Reason, Violation, kind, setting};
use crate::stream::Stream;
use bytes::Bytes;
use std::task::Waker;

/// The fields of a call, as they come, bytes. No frame but of messages is longer.
pub(super) const MOST_FIELDS: usize = 64 << 10;
/// The largest request, bytes: the format's own limit, and gRPC's head.
const MOST_REQUEST: usize = (1 << 31) - 1 + 5;

/// What the next bytes of the client are.
#[derive(Debug)]
pub(super) enum Coming {
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

impl State {
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
        if self.is_leaving || self.streams.len() >= STREAMS {
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
                setting::HEADER_TABLE_SIZE => self.answers.set_table_size(value),
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
