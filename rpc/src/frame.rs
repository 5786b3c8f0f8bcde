//! Encoding and decoding of HTTP/2 frame headers, and of the numbers in frame payloads (RFC 9113).

/// The bytes with which a client opens a connection.
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length of a frame header, bytes.
pub(crate) const HEADER_LEN: usize = 9;

/// Numbers of the HTTP/2 frame types.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
pub(crate) const PADDED: u8 = 0x8;
pub(crate) const WITH_PRIORITY: u8 = 0x20;

/// Identifiers of the parameters in SETTINGS frames.
pub(crate) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
}

/// An HTTP/2 error code: the reason why a stream or a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reason(pub(crate) u32);

impl Reason {
    pub(crate) const NO_ERROR: Reason = Reason(0);
    pub(crate) const PROTOCOL_ERROR: Reason = Reason(1);
    pub(crate) const FLOW_CONTROL_ERROR: Reason = Reason(3);
    pub(crate) const STREAM_CLOSED: Reason = Reason(5);
    pub(crate) const FRAME_SIZE_ERROR: Reason = Reason(6);
    pub(crate) const REFUSED_STREAM: Reason = Reason(7);
    pub(crate) const COMPRESSION_ERROR: Reason = Reason(9);
    pub(crate) const ENHANCE_YOUR_CALM: Reason = Reason(11);
}

/// A protocol violation by a client that ends its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) reason: Reason,
    pub(crate) message: &'static str,
}

impl Violation {
    pub(crate) fn protocol(message: &'static str) -> Violation {
        Violation { reason: Reason::PROTOCOL_ERROR, message }
    }

    pub(crate) fn size(message: &'static str) -> Violation {
        Violation { reason: Reason::FRAME_SIZE_ERROR, message }
    }
}

/// The fixed-size header in front of a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl FrameHeader {
    pub(crate) fn read(bytes: &[u8; HEADER_LEN]) -> FrameHeader {
        let [a, b, c, kind, flags, stream @ ..] = *bytes;
        FrameHeader {
            len: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            // The highest bit of the stream number is reserved and ignored.
            stream: u32::from_be_bytes(stream) & !(1 << 31),
        }
    }

    pub(crate) fn has_flag(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Appends the encoded header to `out`. `len` must fit into 24 bits.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        debug_assert!(self.len < 1 << 24, "a frame of {} bytes", self.len);
        let [_, a, b, c] = (self.len as u32).to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        out.extend_from_slice(&[a, b, c, self.kind, self.flags, d, e, f, g]);
    }
}

/// Appends a frame with a short payload to `out`.
pub(crate) fn put(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    FrameHeader { len: payload.len(), kind, flags, stream }.put(out);
    out.extend_from_slice(payload);
}

/// Decodes a payload that is a single 32-bit number.
pub(crate) fn read_u32(payload: &[u8]) -> Result<u32, Violation> {
    match payload.first_chunk() {
        Some(bytes) if payload.len() == 4 => Ok(u32::from_be_bytes(*bytes)),
        _ => Err(Violation::size("a frame whose payload is not 4 bytes long")),
    }
}
