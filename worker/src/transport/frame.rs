//! The encoding of frames, the messages between two processes: a header of 16 bytes, the fields of the frame,
//! and a payload. This module uses no sockets.

use super::fabric::{MAX_TEXT, RemoteMemory};
use super::peer_access::DevicePair;
use bytes::BufMut;
use device::shared_block::MemoryKind;
use graph::{Code, DType, Shape};
use proto::Status;
use std::sync::Arc;
use std::time::Duration;

/// Length of a frame's header, bytes: the frame's kind (1), zeros (3), the length of the fields (4) and of
/// the payload (8), both little-endian.
pub(super) const HEADER: usize = 16;
/// Largest length of a frame's fields, bytes. The fields contain rendezvous keys, which contain names of
/// nodes.
pub(super) const MAX_FIELDS_LEN: usize = 1 << 20;

/// The identity of a value that a link transfers: its step and its rendezvous key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueId {
    pub(crate) step_id: i64,
    /// The text of the rendezvous key.
    pub(crate) key: Arc<str>,
}

/// The dtype and shape of a tensor whose elements are plain bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TensorSpec {
    pub(super) dtype: DType,
    pub(super) shape: Shape,
}

impl TensorSpec {
    /// Returns the size of the elements, bytes; `None` if the dtype has no plain elements or the size
    /// overflows.
    pub(super) fn len(&self) -> Option<usize> {
        self.dtype.size()?.checked_mul(self.shape.num_elements())
    }
}

/// The position of a tensor in a shared block: the block's number, and the tensor's first byte in it, a multiple of the
/// alignment of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockPosition {
    pub(super) block: u64,
    pub(super) start: u64,
}

/// One message between two processes. Frames up to [`Frame::Failed`] go from the sender of tensors to the receiver,
/// frames from [`Frame::Request`] to [`Frame::Ran`] from the receiver to the sender, and [`Frame::ShuttingDown`] in
/// either direction. [`Frame::Elements`] and [`Frame::Dead`] also go back to the sender, for
/// [piggybacked](super::piggyback) values.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Frame {
    /// A tensor whose elements are the payload.
    Elements(ValueId, TensorSpec),
    /// A tensor without plain elements, such as strings; the payload is a `TensorProto`.
    Message(ValueId),
    /// A dead tensor.
    Dead(ValueId),
    /// A tensor whose elements are in a shared block of the sender, which does not change them until it
    /// receives [`Frame::Returned`] with the same `loan`.
    Shared { value_id: ValueId, spec: TensorSpec, at: BlockPosition, loan: u64 },
    /// A tensor whose elements the receiver reads by the link's fabric; the sender does not change them until it receives
    /// [`Frame::Returned`] or [`Frame::NotRead`] with the same `loan`.
    Lent { value_id: ValueId, spec: TensorSpec, from: RemoteMemory, loan: u64 },
    /// A value that is stored under `number` in the hand-off table of a link within one process.
    HandOff { value_id: ValueId, number: u64 },
    /// A shared block of the sender that later [`Frame::Shared`] frames refer to; the block's descriptor
    /// follows.
    Block { block: u64, len: u64, kind: MemoryKind },
    /// A shared block that the sender has freed.
    BlockFreed { block: u64 },
    /// A query whether a device of the receiver can access a shared block in the memory of a device of the
    /// sender.
    QueryAccess { block: u64, pair: DevicePair },
    /// The key of a value that the receiver may request.
    Offer(ValueId),
    /// A request to run a registered graph; the payload is a `RunGraphRequest`.
    Run { id: u64, timeout: Option<Duration> },
    /// The cancellation of the run that [`Frame::Run`] with the same `id` began.
    Cancel { id: u64 },
    /// The end of a step: the receiver removes the step's state.
    Cleanup { step_id: i64 },
    /// The failure of a step at the sender: no more of its values will be sent.
    Failed { step_id: i64, why: Status },

    /// A request for a value that [`Frame::Offer`] offered.
    Request(ValueId),
    /// The number of pushed bytes that the receiver has consumed or dropped since its last report.
    Consumed { bytes: u64 },
    /// The return of the memory that [`Frame::Shared`] with the same `loan` lent.
    Returned { loan: u64 },
    /// The receiver could not read the tensor that [`Frame::Lent`] with the same `loan` lent.
    NotRead { loan: u64 },
    /// The text that completes the sender's end of the fabric; empty if the receiver cannot use the fabric.
    FabricAnswer { text: String },
    /// The answer to [`Frame::QueryAccess`], which also applies to other blocks of the same pair of devices.
    AccessAnswer { pair: DevicePair, has_access: bool },
    /// The result of the run that [`Frame::Run`] with the same `id` began; the payload is a
    /// `RunGraphResponse`.
    Ran { id: u64, failure: Option<Status> },

    /// The announcement of a shutdown: the connection will end.
    ShuttingDown,
}

/// The separator between the two device names of a pair, as in rendezvous keys.
const SEPARATOR: char = ';';

const ELEMENTS: u8 = 1;
const MESSAGE: u8 = 2;
const DEAD: u8 = 3;
const SHARED: u8 = 4;
const BLOCK: u8 = 5;
const BLOCK_FREED: u8 = 6;
const OFFER: u8 = 7;
const RUN: u8 = 8;
const CANCEL: u8 = 9;
const CLEANUP: u8 = 10;
const REQUEST: u8 = 11;
const CONSUMED: u8 = 12;
const RETURNED: u8 = 13;
const RAN: u8 = 14;
const HAND_OFF: u8 = 15;
const SHUTTING_DOWN: u8 = 16;
const FAILED: u8 = 17;
const QUERY_ACCESS: u8 = 18;
const ACCESS_ANSWER: u8 = 19;
// Sent only over links whose ends have a fabric.
const LENT: u8 = 20;
const NOT_READ: u8 = 21;
const FABRIC_ANSWER: u8 = 22;

/// Bytes that are no valid frame; the error says which part is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub(super) struct Malformed(pub(super) &'static str);

impl From<Malformed> for std::io::Error {
    fn from(malformed: Malformed) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::InvalidData, malformed)
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: u8,
    pub(super) fields_len: usize,
    pub(super) payload: u64,
}

impl Header {
    /// Decodes a header.
    pub(super) fn decode(bytes: &[u8; HEADER]) -> Result<Header, Malformed> {
        let [kind, 0, 0, 0, h0, h1, h2, h3, payload @ ..] = *bytes else { return Err(Malformed("header")) };
        let fields_len = u32::from_le_bytes([h0, h1, h2, h3]) as usize;
        if !(ELEMENTS..=FABRIC_ANSWER).contains(&kind) || fields_len > MAX_FIELDS_LEN {
            return Err(Malformed("header"));
        }
        Ok(Header { kind, fields_len, payload: u64::from_le_bytes(payload) })
    }
}

impl Frame {
    /// Appends the header and the fields of the frame.
    ///
    /// # Errors
    /// For fields longer than [`MAX_FIELDS_LEN`]; then nothing is appended.
    pub(super) fn encode(&self, payload: usize, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        let kind = self.put(out);
        let head = out.len() - start - HEADER;
        if head > MAX_FIELDS_LEN {
            out.truncate(start);
            return Err(Malformed("frame: its key is too long"));
        }
        out[start] = kind;
        out[start + 4..start + 8].copy_from_slice(&(head as u32).to_le_bytes());
        out[start + 8..start + HEADER].copy_from_slice(&(payload as u64).to_le_bytes());
        Ok(())
    }

    /// Appends the frame's fields to `out`. Returns the number of the frame's kind.
    fn put(&self, out: &mut Vec<u8>) -> u8 {
        match self {
            Frame::Elements(value_id, spec) => {
                put_spec(spec, out);
                put_value_id(value_id, out);
                ELEMENTS
            }
            Frame::Message(value_id) => put_value_frame(MESSAGE, value_id, out),
            Frame::Dead(value_id) => put_value_frame(DEAD, value_id, out),
            Frame::Offer(value_id) => put_value_frame(OFFER, value_id, out),
            Frame::Request(value_id) => put_value_frame(REQUEST, value_id, out),
            Frame::Shared { value_id, spec, at, loan } => {
                out.put_u64_le(at.block);
                out.put_u64_le(at.start);
                out.put_u64_le(*loan);
                put_spec(spec, out);
                put_value_id(value_id, out);
                SHARED
            }
            Frame::Lent { value_id, spec, from, loan } => {
                out.put_u64_le(from.address);
                out.put_u64_le(from.key);
                out.put_u64_le(*loan);
                put_spec(spec, out);
                put_value_id(value_id, out);
                LENT
            }
            Frame::NotRead { loan } => put_number(NOT_READ, *loan, out),
            Frame::FabricAnswer { text } => {
                out.put_slice(text.as_bytes());
                FABRIC_ANSWER
            }
            Frame::HandOff { value_id, number } => {
                out.put_u64_le(*number);
                put_value_id(value_id, out);
                HAND_OFF
            }
            Frame::Block { block, len, kind } => {
                out.put_u64_le(*block);
                out.put_u64_le(*len);
                out.put_u8(u8::from(*kind == MemoryKind::Device));
                BLOCK
            }
            Frame::QueryAccess { block, pair } => {
                out.put_u64_le(*block);
                put_pair(pair, out);
                QUERY_ACCESS
            }
            Frame::AccessAnswer { pair, has_access } => {
                out.put_u8(u8::from(*has_access));
                put_pair(pair, out);
                ACCESS_ANSWER
            }
            Frame::BlockFreed { block } => put_number(BLOCK_FREED, *block, out),
            Frame::Cancel { id } => put_number(CANCEL, *id, out),
            Frame::Cleanup { step_id } => put_number(CLEANUP, *step_id as u64, out),
            Frame::Failed { step_id, why } => {
                out.put_i64_le(*step_id);
                put_status(why, out);
                FAILED
            }
            Frame::Consumed { bytes } => put_number(CONSUMED, *bytes, out),
            Frame::Returned { loan } => put_number(RETURNED, *loan, out),
            Frame::Run { id, timeout } => {
                out.put_u64_le(*id);
                let micros = timeout.map(|t| u64::try_from(t.as_micros()).unwrap_or(u64::MAX - 1));
                out.put_u64_le(micros.unwrap_or(u64::MAX));
                RUN
            }
            Frame::Ran { id, failure } => {
                out.put_u64_le(*id);
                if let Some(status) = failure {
                    put_status(status, out);
                }
                RAN
            }
            Frame::ShuttingDown => SHUTTING_DOWN,
        }
    }

    /// Decodes the fields of a frame.
    ///
    /// # Errors
    /// For fields that this implementation does not produce.
    pub(super) fn decode(kind: u8, head: &[u8]) -> Result<Frame, Malformed> {
        let mut head = Cursor(head);
        let frame = match kind {
            ELEMENTS => {
                let spec = head.spec()?;
                Frame::Elements(head.value_id()?, spec)
            }
            MESSAGE => Frame::Message(head.value_id()?),
            DEAD => Frame::Dead(head.value_id()?),
            OFFER => Frame::Offer(head.value_id()?),
            REQUEST => Frame::Request(head.value_id()?),
            SHARED => {
                let at = BlockPosition { block: head.number()?, start: head.number()? };
                let loan = head.number()?;
                let spec = head.spec()?;
                Frame::Shared { value_id: head.value_id()?, spec, at, loan }
            }
            LENT => {
                let from = RemoteMemory { address: head.number()?, key: head.number()? };
                let loan = head.number()?;
                let spec = head.spec()?;
                Frame::Lent { value_id: head.value_id()?, spec, from, loan }
            }
            NOT_READ => Frame::NotRead { loan: head.number()? },
            FABRIC_ANSWER => match head.rest()? {
                text if text.len() > MAX_TEXT => return Err(Malformed("answer: its text is too long")),
                text => Frame::FabricAnswer { text: text.to_owned() },
            },
            HAND_OFF => {
                let number = head.number()?;
                Frame::HandOff { value_id: head.value_id()?, number }
            }
            BLOCK => {
                let (block, len) = (head.number()?, head.number()?);
                let kind = if head.flag()? { MemoryKind::Device } else { MemoryKind::Host };
                Frame::Block { block, len, kind }
            }
            QUERY_ACCESS => {
                let block = head.number()?;
                Frame::QueryAccess { block, pair: head.pair()? }
            }
            ACCESS_ANSWER => {
                let has_access = head.flag()?;
                Frame::AccessAnswer { pair: head.pair()?, has_access }
            }
            BLOCK_FREED => Frame::BlockFreed { block: head.number()? },
            CANCEL => Frame::Cancel { id: head.number()? },
            CLEANUP => Frame::Cleanup { step_id: head.number()? as i64 },
            FAILED => Frame::Failed { step_id: head.number()? as i64, why: head.status()? },
            CONSUMED => Frame::Consumed { bytes: head.number()? },
            RETURNED => Frame::Returned { loan: head.number()? },
            RUN => {
                let (id, micros) = (head.number()?, head.number()?);
                Frame::Run { id, timeout: (micros != u64::MAX).then(|| Duration::from_micros(micros)) }
            }
            RAN => {
                let id = head.number()?;
                let failure = if head.0.is_empty() { None } else { Some(head.status()?) };
                Frame::Ran { id, failure }
            }
            SHUTTING_DOWN => Frame::ShuttingDown,
            _ => return Err(Malformed("kind")),
        };
        if head.0.is_empty() { Ok(frame) } else { Err(Malformed("head")) }
    }
}

fn put_value_frame(kind: u8, value_id: &ValueId, out: &mut Vec<u8>) -> u8 {
    put_value_id(value_id, out);
    kind
}

fn put_number(kind: u8, number: u64, out: &mut Vec<u8>) -> u8 {
    out.put_u64_le(number);
    kind
}

/// Appends a value's identity. It must be the last field, because the key extends to the end.
fn put_value_id(value_id: &ValueId, out: &mut Vec<u8>) {
    out.put_i64_le(value_id.step_id);
    out.put_slice(value_id.key.as_bytes());
}

/// Appends a pair of devices. It must be the last field.
fn put_pair(pair: &DevicePair, out: &mut Vec<u8>) {
    out.put_slice(pair.lender.as_bytes());
    out.put_u8(SEPARATOR as u8);
    out.put_slice(pair.borrower.as_bytes());
}

fn put_spec(spec: &TensorSpec, out: &mut Vec<u8>) {
    out.put_u8(spec.dtype.number() as u8);
    out.put_u8(spec.shape.rank() as u8);
    spec.shape.iter().for_each(|&dim| out.put_u64_le(dim as u64));
}

/// Appends a status. It must be the last field, because the message extends to the end; a long message is
/// truncated.
fn put_status(status: &Status, out: &mut Vec<u8>) {
    out.put_u8(status.code.number() as u8);
    out.put_u8(u8::from(status.derived) | u8::from(status.restarted) << 1);
    let most = status.message.len().min(MAX_FIELDS_LEN / 2);
    let end = (0..=most).rev().find(|&i| status.message.is_char_boundary(i)).unwrap_or(0);
    out.put_slice(&status.message.as_bytes()[..end]);
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed("head: it is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.take(1).map(|b| b[0])
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("flag")),
        }
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(number))
    }

    fn rest(&mut self) -> Result<&'a str, Malformed> {
        let rest = std::mem::take(&mut self.0);
        std::str::from_utf8(rest).map_err(|_| Malformed("text"))
    }

    fn value_id(&mut self) -> Result<ValueId, Malformed> {
        Ok(ValueId { step_id: self.number()? as i64, key: self.rest()?.into() })
    }

    fn pair(&mut self) -> Result<DevicePair, Malformed> {
        let (lender, borrower) = self.rest()?.split_once(SEPARATOR).ok_or(Malformed("pair of devices"))?;
        Ok(DevicePair { lender: lender.into(), borrower: borrower.into() })
    }

    fn spec(&mut self) -> Result<TensorSpec, Malformed> {
        let dtype = DType::from_number(self.byte()?.into()).ok_or(Malformed("type"))?;
        let rank = self.byte()?;
        let dims = (0..rank).map(|_| Ok(self.number()? as i64)).collect::<Result<Vec<i64>, Malformed>>()?;
        Ok(TensorSpec { dtype, shape: Shape::from_i64(&dims).map_err(|_| Malformed("shape"))? })
    }

    fn status(&mut self) -> Result<Status, Malformed> {
        let (code, marks) = (self.byte()?, self.byte()?);
        let status = Status::new(Code::from_number(code.into()), self.rest()?);
        Ok(Status { derived: marks & 1 != 0, restarted: marks & 2 != 0, ..status })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Result<Vec<Frame>, graph::Error> {
        let name = || ValueId { step_id: -5, key: "a;b;ü".into() };
        let form = |dims: &[usize]| {
            Ok::<_, graph::Error>(TensorSpec { dtype: DType::Half, shape: Shape::new(dims)? })
        };
        let pair =
            || DevicePair { lender: "GPU:1".into(), borrower: "/job:w/replica:0/task:0/device:GPU:0".into() };
        let failure = Status::new(Code::Aborted, "why ü").restarted();
        Ok(vec![
            Frame::Elements(name(), form(&[])?),
            Frame::Elements(name(), form(&[0, 3, 1 << 40])?),
            Frame::Message(name()),
            Frame::Dead(name()),
            Frame::Shared {
                value_id: name(),
                spec: form(&[7])?,
                at: BlockPosition { block: 3, start: 128 },
                loan: u64::MAX,
            },
            Frame::Lent {
                value_id: name(),
                spec: form(&[7])?,
                from: RemoteMemory { address: 1 << 47, key: 9 },
                loan: 3,
            },
            Frame::NotRead { loan: 3 },
            Frame::FabricAnswer { text: "qp 7".into() },
            Frame::FabricAnswer { text: String::new() },
            Frame::HandOff { value_id: name(), number: 8 },
            Frame::Block { block: 1, len: 1 << 40, kind: MemoryKind::Host },
            Frame::Block { block: 2, len: 1 << 21, kind: MemoryKind::Device },
            Frame::QueryAccess { block: 2, pair: pair() },
            Frame::AccessAnswer { pair: pair(), has_access: true },
            Frame::BlockFreed { block: 9 },
            Frame::Offer(name()),
            Frame::Run { id: 4, timeout: None },
            Frame::Run { id: 4, timeout: Some(Duration::from_millis(3)) },
            Frame::Cancel { id: 5 },
            Frame::Cleanup { step_id: i64::MIN },
            Frame::Failed { step_id: 7, why: Status::new(Code::Cancelled, "").derived() },
            Frame::Request(name()),
            Frame::Consumed { bytes: 12 },
            Frame::Returned { loan: 1 },
            Frame::Ran { id: 2, failure: None },
            Frame::Ran { id: 2, failure: Some(failure) },
            Frame::ShuttingDown,
        ])
    }

    #[test]
    fn frames_survive_encoding() -> Result<(), Box<dyn std::error::Error>> {
        for frame in frames()? {
            let mut bytes = Vec::new();
            frame.encode(77, &mut bytes)?;
            let (header, head) = bytes.split_first_chunk().ok_or("short")?;
            let header = Header::decode(header)?;
            assert_eq!((header.fields_len, header.payload), (head.len(), 77), "{frame:?}");
            assert_eq!(Frame::decode(header.kind, head)?, frame);
        }
        Ok(())
    }

    #[test]
    fn truncated_or_altered_frames_do_not_decode_to_themselves() -> Result<(), Box<dyn std::error::Error>> {
        for frame in frames()? {
            let mut bytes = Vec::new();
            frame.encode(0, &mut bytes)?;
            let head = &bytes[HEADER..];
            for cut in 0..head.len() {
                assert_ne!(Frame::decode(bytes[0], &head[..cut]).ok().as_ref(), Some(&frame));
            }
            for kind in 0..=u8::MAX {
                // Fields that are decoded as another kind of frame must not panic.
                let _ = Frame::decode(kind, head);
            }
        }
        assert!(Header::decode(b"GET / HTTP/1.1\r\n").is_err());
        assert!(Header::decode(&[0xff; HEADER]).is_err() && Header::decode(&[0; HEADER]).is_err());
        Ok(())
    }

    #[test]
    fn a_frame_with_an_oversized_key_is_not_encoded() {
        let mut out = vec![1, 2];
        let value_id = ValueId { step_id: 1, key: "x".repeat(MAX_FIELDS_LEN).into() };
        assert!(Frame::Offer(value_id).encode(0, &mut out).is_err());
        assert_eq!(out, [1, 2]);
    }
}
