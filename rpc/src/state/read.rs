//! The receiving side of a connection's state: a client's bytes become calls and parts of their requests.

use super::{
    ConnectionState, INITIAL_FRAME, MAX_FRAME, MAX_STREAMS, ReadEvents, RequestPart, WINDOW, enqueue,
};
use crate::frame::{self, FrameHeader, HEADER_LEN, PREFACE, Reason, Violation, kind, setting};
use crate::stream::Stream;
use bytes::Bytes;
use std::task::Waker;

/// Largest encoded header block of a call, and largest payload of every frame except DATA frames, bytes.
pub(super) const MAX_HEADER_BLOCK: usize = 64 << 10;
/// Largest request, bytes: a message of protobuf's largest size with gRPC's message header.
const MAX_REQUEST: usize = (1 << 31) - 1 + 5;

/// The element of the HTTP/2 protocol that a client's next bytes belong to.
#[derive(Debug)]
pub(super) enum ReadState {
    Preface,
    FrameHeader,
    /// The payload of a frame that is processed as a whole.
    Payload(FrameHeader),
    /// The header of the CONTINUATION frame that must follow an incomplete header block.
    ContinuationHeader(HeaderBlock),
    /// The payload of a CONTINUATION frame.
    Continuation {
        next: FrameHeader,
        block: HeaderBlock,
    },
    /// The byte with the length of a DATA frame's padding.
    PaddingLen(FrameHeader),
    /// The payload of a DATA frame, which is buffered as its bytes arrive.
    Data(DataFrame),
}

/// A header block of which a part has been received.
#[derive(Debug)]
pub(super) struct HeaderBlock {
    /// The header of the HEADERS frame.
    header: FrameHeader,
    bytes: Vec<u8>,
}

/// A DATA frame of which a part has been received.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataFrame {
    stream: u32,
    /// Number of bytes of the message that are still to be received.
    left: usize,
    /// Number of bytes of padding that are still to be received.
    padding: usize,
    /// Set for the last frame of a request.
    ends: bool,
}

impl ConnectionState {
    /// Processes the complete protocol elements at the start of `bytes`. Returns their length; the caller
    /// passes the other bytes again, together with the bytes received next.
    ///
    /// # Errors
    /// For a protocol violation that ends the connection.
    pub(crate) fn read(&mut self, bytes: &[u8], events: &mut ReadEvents) -> Result<usize, Violation> {
        let mut rest = bytes;
        while self.read_next(&mut rest, events)? {}
        Ok(bytes.len() - rest.len())
    }

    /// Processes one protocol element at the start of `rest`, and removes it. Returns false if the element is
    /// incomplete.
    fn read_next(&mut self, rest: &mut &[u8], events: &mut ReadEvents) -> Result<bool, Violation> {
        match std::mem::replace(&mut self.read_state, ReadState::FrameHeader) {
            ReadState::Preface => self.read_preface(rest),
            ReadState::FrameHeader => self.read_frame_header(rest, events),
            ReadState::Payload(header) => self.read_payload(header, rest, events),
            ReadState::ContinuationHeader(block) => self.read_continuation_header(block, rest),
            ReadState::Continuation { next, block } => self.read_continuation(next, block, rest, events),
            ReadState::PaddingLen(header) => self.read_padding_len(header, rest, events),
            ReadState::Data(frame) => Ok(self.read_data(frame, rest, events)),
        }
    }

    /// Sets the state in which the next received bytes are processed. Returns false, because more bytes are
    /// needed.
    fn wait_in(&mut self, state: ReadState) -> bool {
        self.read_state = state;
        false
    }

    fn read_preface(&mut self, rest: &mut &[u8]) -> Result<bool, Violation> {
        let start = &rest[..rest.len().min(PREFACE.len())];
        if !PREFACE.starts_with(start) {
            return Err(Violation::protocol("the connection preface is not that of HTTP/2"));
        }
        if start.len() < PREFACE.len() {
            return Ok(self.wait_in(ReadState::Preface));
        }
        *rest = &rest[PREFACE.len()..];
        Ok(true)
    }

    fn read_frame_header(&mut self, rest: &mut &[u8], events: &mut ReadEvents) -> Result<bool, Violation> {
        let Some((header, behind)) = rest.split_first_chunk::<HEADER_LEN>() else { return Ok(false) };
        *rest = behind;
        let header = FrameHeader::read(header);
        check_len(header)?;
        self.read_state = match header.kind {
            kind::DATA if header.has_flag(frame::PADDED) => ReadState::PaddingLen(header),
            kind::DATA => {
                self.begin_data(header, 0, events)?;
                ReadState::Data(DataFrame::new(header, header.len, 0))
            }
            _ => ReadState::Payload(header),
        };
        Ok(true)
    }

    fn read_payload(
        &mut self,
        header: FrameHeader,
        rest: &mut &[u8],
        events: &mut ReadEvents,
    ) -> Result<bool, Violation> {
        let Some((payload, behind)) = rest.split_at_checked(header.len) else {
            return Ok(self.wait_in(ReadState::Payload(header)));
        };
        *rest = behind;
        self.process_frame(header, payload, events)?;
        Ok(true)
    }

    fn read_continuation_header(&mut self, block: HeaderBlock, rest: &mut &[u8]) -> Result<bool, Violation> {
        let Some((next, behind)) = rest.split_first_chunk::<HEADER_LEN>() else {
            return Ok(self.wait_in(ReadState::ContinuationHeader(block)));
        };
        *rest = behind;
        let next = FrameHeader::read(next);
        if next.kind != kind::CONTINUATION || next.stream != block.header.stream {
            return Err(Violation::protocol("a frame interrupts a header block"));
        }
        if block.bytes.len() + next.len > MAX_HEADER_BLOCK {
            return Err(too_many_fields());
        }
        self.read_state = ReadState::Continuation { next, block };
        Ok(true)
    }

    fn read_continuation(
        &mut self,
        next: FrameHeader,
        mut block: HeaderBlock,
        rest: &mut &[u8],
        events: &mut ReadEvents,
    ) -> Result<bool, Violation> {
        let Some((payload, behind)) = rest.split_at_checked(next.len) else {
            return Ok(self.wait_in(ReadState::Continuation { next, block }));
        };
        *rest = behind;
        block.bytes.extend_from_slice(payload);
        match next.has_flag(frame::END_HEADERS) {
            true => self.process_fields(block.header, &block.bytes, events)?,
            // An empty CONTINUATION frame is refused, because a client could send such frames without end.
            false if payload.is_empty() => return Err(too_many_fields()),
            false => self.read_state = ReadState::ContinuationHeader(block),
        }
        Ok(true)
    }

    fn read_padding_len(
        &mut self,
        header: FrameHeader,
        rest: &mut &[u8],
        events: &mut ReadEvents,
    ) -> Result<bool, Violation> {
        let Some((&padding, behind)) = rest.split_first() else {
            return Ok(self.wait_in(ReadState::PaddingLen(header)));
        };
        let padding = usize::from(padding);
        let left = (header.len - 1).checked_sub(padding);
        let left =
            left.ok_or(Violation::protocol("the padding of a DATA frame is longer than its payload"))?;
        *rest = behind;
        self.begin_data(header, 1, events)?;
        self.read_state = ReadState::Data(DataFrame::new(header, left, padding));
        Ok(true)
    }

    /// Buffers the received part of a DATA frame and skips its padding. Returns false unless the frame is complete.
    fn read_data(&mut self, mut frame: DataFrame, rest: &mut &[u8], events: &mut ReadEvents) -> bool {
        let now = rest.len().min(frame.left);
        if now == 0 && frame.left > 0 {
            return self.wait_in(ReadState::Data(frame));
        }
        let (payload, behind) = rest.split_at(now);
        *rest = behind;
        self.buffer_data(frame.stream, payload, events);
        frame.left -= now;
        if frame.left > 0 {
            return self.wait_in(ReadState::Data(frame));
        }
        let now = rest.len().min(frame.padding);
        *rest = &rest[now..];
        self.release_window(frame.stream, now as u32);
        frame.padding -= now;
        if frame.padding > 0 {
            return self.wait_in(ReadState::Data(frame));
        }
        if frame.ends {
            self.end_request(frame.stream);
        }
        true
    }

    /// Subtracts a DATA frame's length from the flow-control windows when its header has arrived. `overhead` is the
    /// number of the frame's bytes that have been received and are not part of the message.
    fn begin_data(
        &mut self,
        header: FrameHeader,
        overhead: u32,
        events: &mut ReadEvents,
    ) -> Result<(), Violation> {
        let too_much = Violation {
            reason: Reason::FLOW_CONTROL_ERROR,
            message: "a DATA frame exceeds the flow-control window",
        };
        if header.stream == 0 || header.stream > self.last_stream {
            return Err(Violation::protocol("a DATA frame on an idle stream or on stream 0"));
        }
        let len = header.len as u32;
        self.window = self.window.checked_sub(len).ok_or(too_much)?;
        if let Some(stream) = self.streams.get_mut(&header.stream) {
            if stream.request.has_ended {
                self.end_stream(header.stream, Reason::STREAM_CLOSED, events);
            } else {
                stream.request.window = stream.request.window.checked_sub(len).ok_or(too_much)?;
            }
        }
        self.release_window(header.stream, overhead);
        Ok(())
    }

    /// Appends message bytes to a request, and wakes the service if it reads the request in parts.
    fn buffer_data(&mut self, id: u32, payload: &[u8], events: &mut ReadEvents) {
        let Some(stream) = self.streams.get_mut(&id) else {
            // The stream has been removed, but its bytes still count against the connection's window.
            return self.release_window(id, payload.len() as u32);
        };
        let request = &mut stream.request;
        if request.buffered.len() + payload.len() > MAX_REQUEST || !request.try_buffer(payload) {
            self.release_window(id, payload.len() as u32);
            return self.end_stream(id, Reason::ENHANCE_YOUR_CALM, events);
        }
        if request.is_read_whole {
            self.release_window(id, payload.len() as u32);
        } else {
            self.wakers.extend(request.reader.take());
        }
    }

    /// Processes a complete frame that is not a DATA frame.
    fn process_frame(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        events: &mut ReadEvents,
    ) -> Result<(), Violation> {
        let on_connection = header.stream == 0;
        match header.kind {
            kind::HEADERS => {
                let block = fields_of(header, payload)?;
                match header.has_flag(frame::END_HEADERS) {
                    true => self.process_fields(header, block, events)?,
                    false => {
                        let block = HeaderBlock { header, bytes: block.to_vec() };
                        self.read_state = ReadState::ContinuationHeader(block);
                    }
                }
            }
            kind::PRIORITY if on_connection => {
                return Err(Violation::protocol("a PRIORITY frame on stream 0"));
            }
            kind::PRIORITY if payload.len() != 5 => {
                self.end_stream(header.stream, Reason::FRAME_SIZE_ERROR, events);
            }
            kind::RST_STREAM => {
                frame::read_u32(payload)?;
                if on_connection || header.stream > self.last_stream {
                    return Err(Violation::protocol("an RST_STREAM frame on an idle stream or on stream 0"));
                }
                self.remove_stream(header.stream, events);
            }
            kind::SETTINGS if !on_connection => {
                return Err(Violation::protocol("a SETTINGS frame on a stream"));
            }
            kind::SETTINGS if header.has_flag(frame::ACK) && payload.is_empty() => {}
            kind::SETTINGS if header.has_flag(frame::ACK) => {
                return Err(Violation::size("a SETTINGS acknowledgement with a payload"));
            }
            kind::SETTINGS => self.process_settings(payload)?,
            kind::PUSH_PROMISE => return Err(Violation::protocol("a PUSH_PROMISE frame from a client")),
            kind::PING if !on_connection => return Err(Violation::protocol("a PING frame on a stream")),
            kind::PING if payload.len() != 8 => {
                return Err(Violation::size("a PING frame whose payload is not 8 bytes long"));
            }
            kind::PING if header.has_flag(frame::ACK) => {}
            kind::PING => self.out.put(|out| frame::put(kind::PING, frame::ACK, 0, payload, out)),
            kind::GOAWAY if !on_connection => return Err(Violation::protocol("a GOAWAY frame on a stream")),
            kind::WINDOW_UPDATE => self.process_window_update(header.stream, payload, events)?,
            kind::CONTINUATION => {
                return Err(Violation::protocol("a CONTINUATION frame without a HEADERS frame"));
            }
            // Frames of unknown type are ignored (RFC 9113, section 4.1).
            _ => {}
        }
        Ok(())
    }

    /// Processes a complete header block: the header fields of a new call, or the trailers of a request.
    fn process_fields(
        &mut self,
        header: FrameHeader,
        block: &[u8],
        events: &mut ReadEvents,
    ) -> Result<(), Violation> {
        let reason = Reason::COMPRESSION_ERROR;
        let fields = self.decoder.decode(block).map_err(|e| Violation { reason, message: e.0 })?;
        let (id, ends) = (header.stream, header.has_flag(frame::END_STREAM));
        if id.is_multiple_of(2) {
            return Err(Violation::protocol("a client opened a stream with an even id"));
        }
        if id <= self.last_stream {
            match self.streams.get(&id) {
                Some(stream) if ends && !stream.request.has_ended => self.end_request(id),
                Some(_) => self.end_stream(id, Reason::PROTOCOL_ERROR, events),
                // The stream has been removed; the client may have sent the trailers before it received the
                // stream's end.
                None => {}
            }
            return Ok(());
        }
        self.last_stream = id;
        if self.is_leaving || self.streams.len() >= MAX_STREAMS {
            self.reset(id, Reason::REFUSED_STREAM);
            return Ok(());
        }
        let mut stream = Stream::new(WINDOW, self.initial_out_window);
        stream.request.has_ended = ends;
        self.streams.insert(id, stream);
        events.begun.push((id, fields));
        Ok(())
    }

    /// Applies the client's settings and acknowledges them.
    fn process_settings(&mut self, payload: &[u8]) -> Result<(), Violation> {
        let (settings, []) = payload.as_chunks::<6>() else {
            return Err(Violation::size("a SETTINGS frame whose length is not a multiple of 6"));
        };
        for [a, b, value @ ..] in settings {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([*a, *b]) {
                setting::HEADER_TABLE_SIZE => self.encoder.set_table_size(value),
                setting::INITIAL_WINDOW_SIZE => {
                    if value > WINDOW {
                        let reason = Reason::FLOW_CONTROL_ERROR;
                        return Err(Violation {
                            reason,
                            message: "SETTINGS_INITIAL_WINDOW_SIZE is greater than 2^31 - 1",
                        });
                    }
                    let more = i64::from(value) - self.initial_out_window;
                    self.initial_out_window = value.into();
                    for (id, stream) in &mut self.streams {
                        stream.answer.window += more;
                        enqueue(&mut self.send_queue, *id, stream);
                    }
                }
                setting::MAX_FRAME_SIZE => {
                    if !(INITIAL_FRAME as u32..1 << 24).contains(&value) {
                        return Err(Violation::protocol("SETTINGS_MAX_FRAME_SIZE is out of range"));
                    }
                    self.max_out_frame = (value as usize).min(MAX_FRAME);
                }
                setting::ENABLE_PUSH if value > 1 => {
                    return Err(Violation::protocol("SETTINGS_ENABLE_PUSH is neither 0 nor 1"));
                }
                // All other settings concern features that this server does not use.
                _ => {}
            }
        }
        self.out.put(|out| frame::put(kind::SETTINGS, frame::ACK, 0, &[], out));
        Ok(())
    }

    /// Processes a WINDOW_UPDATE frame.
    fn process_window_update(
        &mut self,
        id: u32,
        payload: &[u8],
        events: &mut ReadEvents,
    ) -> Result<(), Violation> {
        let more = frame::read_u32(payload)? & WINDOW;
        if id == 0 {
            self.out_window += i64::from(more);
            if more == 0 || self.out_window > WINDOW.into() {
                let reason = if more == 0 { Reason::PROTOCOL_ERROR } else { Reason::FLOW_CONTROL_ERROR };
                return Err(Violation {
                    reason,
                    message: "a WINDOW_UPDATE frame with an increment that is 0 or too large",
                });
            }
            return Ok(());
        }
        if id > self.last_stream {
            return Err(Violation::protocol("a WINDOW_UPDATE frame on an idle stream"));
        }
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        stream.answer.window += i64::from(more);
        if more == 0 {
            self.end_stream(id, Reason::PROTOCOL_ERROR, events);
        } else if stream.answer.window > WINDOW.into() {
            self.end_stream(id, Reason::FLOW_CONTROL_ERROR, events);
        } else {
            enqueue(&mut self.send_queue, id, stream);
        }
        Ok(())
    }

    /// Marks a request as complete and wakes its reader.
    fn end_request(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.request.has_ended = true;
            self.wakers.extend(stream.request.reader.take());
        }
    }

    /// Removes and returns the request of a call if it is complete.
    pub(crate) fn take_whole_request(&mut self, id: u32) -> Option<Bytes> {
        let request = &mut self.streams.get_mut(&id)?.request;
        if !request.has_ended {
            return None;
        }
        let buffered = std::mem::take(&mut request.buffered);
        self.release_window(id, buffered.len() as u32);
        Some(buffered.into())
    }

    /// Removes and returns the received part of a request, or the complete request if `is_read_whole`. Returns `None`
    /// if the part or the complete request has not arrived yet; `waker` is woken once it has.
    pub(crate) fn poll_part(&mut self, id: u32, is_read_whole: bool, waker: &Waker) -> Option<RequestPart> {
        let Some(Stream { request, .. }) = self.streams.get_mut(&id) else { return Some(RequestPart::Gone) };
        let newly_whole = is_read_whole && !request.is_read_whole;
        let was_released = request.is_read_whole;
        request.is_read_whole = is_read_whole;
        if request.has_ended || (!is_read_whole && !request.buffered.is_empty()) {
            if request.buffered.is_empty() {
                return Some(RequestPart::End);
            }
            let buffered = std::mem::take(&mut request.buffered);
            if !was_released {
                self.release_window(id, buffered.len() as u32);
            }
            return Some(RequestPart::Bytes(buffered.into()));
        }
        request.reader = Some(waker.clone());
        if newly_whole {
            let buffered = request.buffered.len() as u32;
            self.release_window(id, buffered);
        }
        None
    }
}

impl DataFrame {
    fn new(header: FrameHeader, left: usize, padding: usize) -> DataFrame {
        DataFrame { stream: header.stream, left, padding, ends: header.has_flag(frame::END_STREAM) }
    }
}

/// Checks the length of a frame against the limits for its type.
fn check_len(header: FrameHeader) -> Result<(), Violation> {
    match header.kind {
        _ if header.len > MAX_FRAME => Err(Violation::size("a frame is longer than SETTINGS_MAX_FRAME_SIZE")),
        kind::DATA if header.has_flag(frame::PADDED) && header.len == 0 => {
            Err(Violation::size("a padded DATA frame without a padding length"))
        }
        kind::DATA => Ok(()),
        kind::HEADERS if header.len > MAX_HEADER_BLOCK => Err(too_many_fields()),
        _ if header.len > MAX_HEADER_BLOCK => Err(Violation::size("a frame other than DATA is too long")),
        _ => Ok(()),
    }
}

fn too_many_fields() -> Violation {
    Violation { reason: Reason::ENHANCE_YOUR_CALM, message: "the header fields of a request are too large" }
}

/// Returns the header block in the payload of a HEADERS frame, without padding and priority.
fn fields_of(header: FrameHeader, payload: &[u8]) -> Result<&[u8], Violation> {
    const TOO_SHORT: Violation = Violation {
        reason: Reason::PROTOCOL_ERROR,
        message: "a HEADERS frame is too short for its padding and priority",
    };
    let mut block = payload;
    let mut padding = 0;
    if header.has_flag(frame::PADDED) {
        let (first, behind) = block.split_first().ok_or(TOO_SHORT)?;
        (padding, block) = (usize::from(*first), behind);
    }
    if header.has_flag(frame::WITH_PRIORITY) {
        block = block.get(5..).ok_or(TOO_SHORT)?;
    }
    let len = block.len().checked_sub(padding).ok_or(TOO_SHORT)?;
    Ok(&block[..len])
}
