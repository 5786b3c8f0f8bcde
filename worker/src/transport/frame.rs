//! What travels between two processes, as bytes: a header of 16 bytes, a head that says what it is, and a payload.
//! No sockets here.

use super::sights::Pair;
use bytes::BufMut;
use device::shared_block::Place;
use graph::{Code, DType, Shape};
use proto::Status;
use std::sync::Arc;
use std::time::Duration;

/// The kind, three zeros, the head's length in 4 bytes, the payload's in 8, all little-endian.
pub(super) const HEADER: usize = 16;
/// Longest head: names of nodes are in it.
pub(super) const MAX_HEAD: usize = 1 << 20;

/// Which value of which step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) step_id: i64,
    /// The text of a rendezvous key.
    pub(crate) key: Arc<str>,
}

/// What elements mean.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Form {
    pub(super) dtype: DType,
    pub(super) shape: Shape,
}

impl Form {
    /// The bytes that such elements take; `None` if that is no plain type, or too much.
    pub(super) fn len(&self) -> Option<usize> {
        self.dtype.size()?.checked_mul(self.shape.num_elements())
    }
}

/// One message. Those in the first group go from who sends tensors to who receives them, those in the second back, the
/// last either way, as do values of the [way back](super::way_back): [`Frame::Elements`] and [`Frame::Dead`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Frame {
    /// A plain tensor; the payload is its elements.
    Elements(Name, Form),
    /// A tensor without plain elements; the payload is a `TensorProto`.
    Message(Name),
    /// The news that there is no value.
    Dead(Name),
    /// A plain tensor whose elements are in a block of the sender's memory, lent until it is returned.
    Lent {
        name: Name,
        form: Form,
        block: u64,
        loan: u64,
    },
    /// A value that lies on the shelf of a link within one process.
    Parcel {
        name: Name,
        parcel: u64,
    },
    /// A block of the sender's memory; its descriptor comes along.
    Block {
        block: u64,
        len: u64,
        place: Place,
    },
    BlockGone {
        block: u64,
    },
    /// Whether a device of the receiver sees what is in a block of one of the sender's?
    Look {
        block: u64,
        pair: Pair,
    },
    /// A value is there for the asking.
    Offer(Name),
    /// A run of a registered graph; the payload is a `RunGraphRequest`.
    Run {
        id: u64,
        timeout: Option<Duration>,
    },
    /// The caller has given up.
    Cancel {
        id: u64,
    },
    /// Forget a step.
    Cleanup {
        step_id: i64,
    },
    /// A step has failed at the sender: what is awaited of it will not come.
    Failed {
        step_id: i64,
        why: Status,
    },

    /// An offered value is wanted.
    Want(Name),
    /// So many bytes have left the receiver's memory, or have been taken up.
    Taken {
        bytes: u64,
    },
    Returned {
        loan: u64,
    },
    /// Whether a device sees what it was to look at, and what else comes from there.
    Seen {
        pair: Pair,
        sees: bool,
    },
    /// A run has ended; the payload is a `RunGraphResponse`.
    Ran {
        id: u64,
        failure: Option<Status>,
    },

    /// The process is shutting down: the connection will end.
    Leaving,
}

/// Between the names of devices, as in keys.
const SEPARATOR: char = ';';

const ELEMENTS: u8 = 1;
const MESSAGE: u8 = 2;
const DEAD: u8 = 3;
const LENT: u8 = 4;
const BLOCK: u8 = 5;
const BLOCK_GONE: u8 = 6;
const OFFER: u8 = 7;
const RUN: u8 = 8;
const CANCEL: u8 = 9;
const CLEANUP: u8 = 10;
const WANT: u8 = 11;
const TAKEN: u8 = 12;
const RETURNED: u8 = 13;
const RAN: u8 = 14;
const PARCEL: u8 = 15;
const LEAVING: u8 = 16;
const FAILED: u8 = 17;
const LOOK: u8 = 18;
const SEEN: u8 = 19;

/// What the bytes of a peer that has lost its way are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub(super) struct Malformed(pub(super) &'static str);

impl From<Malformed> for std::io::Error {
    fn from(malformed: Malformed) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::InvalidData, malformed)
    }
}

/// What stands before each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: u8,
    pub(super) head: usize,
    pub(super) payload: u64,
}

impl Header {
    pub(super) fn decode(bytes: &[u8; HEADER]) -> Result<Header, Malformed> {
        let [kind, 0, 0, 0, h0, h1, h2, h3, payload @ ..] = *bytes else { return Err(Malformed("header")) };
        let head = u32::from_le_bytes([h0, h1, h2, h3]) as usize;
        if !(ELEMENTS..=SEEN).contains(&kind) || head > MAX_HEAD {
            return Err(Malformed("header"));
        }
        Ok(Header { kind, head, payload: u64::from_le_bytes(payload) })
    }
}

impl Frame {
    /// Appends header and head.
    ///
    /// # Errors
    /// A head that is longer than [`MAX_HEAD`]; then nothing is appended.
    pub(super) fn encode(&self, payload: usize, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        let kind = self.put(out);
        let head = out.len() - start - HEADER;
        if head > MAX_HEAD {
            out.truncate(start);
            return Err(Malformed("frame: its key is too long"));
        }
        out[start] = kind;
        out[start + 4..start + 8].copy_from_slice(&(head as u32).to_le_bytes());
        out[start + 8..start + HEADER].copy_from_slice(&(payload as u64).to_le_bytes());
        Ok(())
    }

    fn put(&self, out: &mut Vec<u8>) -> u8 {
        match self {
            Frame::Elements(name, form) => {
                put_form(form, out);
                put_name(name, out);
                ELEMENTS
            }
            Frame::Message(name) => named(MESSAGE, name, out),
            Frame::Dead(name) => named(DEAD, name, out),
            Frame::Offer(name) => named(OFFER, name, out),
            Frame::Want(name) => named(WANT, name, out),
            Frame::Lent { name, form, block, loan } => {
                out.put_u64_le(*block);
                out.put_u64_le(*loan);
                put_form(form, out);
                put_name(name, out);
                LENT
            }
            Frame::Parcel { name, parcel } => {
                out.put_u64_le(*parcel);
                put_name(name, out);
                PARCEL
            }
            Frame::Block { block, len, place } => {
                out.put_u64_le(*block);
                out.put_u64_le(*len);
                out.put_u8(u8::from(*place == Place::Device));
                BLOCK
            }
            Frame::Look { block, pair } => {
                out.put_u64_le(*block);
                put_pair(pair, out);
                LOOK
            }
            Frame::Seen { pair, sees } => {
                out.put_u8(u8::from(*sees));
                put_pair(pair, out);
                SEEN
            }
            Frame::BlockGone { block } => numbered(BLOCK_GONE, *block, out),
            Frame::Cancel { id } => numbered(CANCEL, *id, out),
            Frame::Cleanup { step_id } => numbered(CLEANUP, *step_id as u64, out),
            Frame::Failed { step_id, why } => {
                out.put_i64_le(*step_id);
                put_status(why, out);
                FAILED
            }
            Frame::Taken { bytes } => numbered(TAKEN, *bytes, out),
            Frame::Returned { loan } => numbered(RETURNED, *loan, out),
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
            Frame::Leaving => LEAVING,
        }
    }

    /// # Errors
    /// What no peer of ours sends.
    pub(super) fn decode(kind: u8, head: &[u8]) -> Result<Frame, Malformed> {
        let mut head = Cursor(head);
        let frame = match kind {
            ELEMENTS => {
                let form = head.form()?;
                Frame::Elements(head.name()?, form)
            }
            MESSAGE => Frame::Message(head.name()?),
            DEAD => Frame::Dead(head.name()?),
            OFFER => Frame::Offer(head.name()?),
            WANT => Frame::Want(head.name()?),
            LENT => {
                let (block, loan) = (head.number()?, head.number()?);
                let form = head.form()?;
                Frame::Lent { name: head.name()?, form, block, loan }
            }
            PARCEL => {
                let parcel = head.number()?;
                Frame::Parcel { name: head.name()?, parcel }
            }
            BLOCK => {
                let (block, len) = (head.number()?, head.number()?);
                let place = if head.flag()? { Place::Device } else { Place::Host };
                Frame::Block { block, len, place }
            }
            LOOK => {
                let block = head.number()?;
                Frame::Look { block, pair: head.pair()? }
            }
            SEEN => {
                let sees = head.flag()?;
                Frame::Seen { pair: head.pair()?, sees }
            }
            BLOCK_GONE => Frame::BlockGone { block: head.number()? },
            CANCEL => Frame::Cancel { id: head.number()? },
            CLEANUP => Frame::Cleanup { step_id: head.number()? as i64 },
            FAILED => Frame::Failed { step_id: head.number()? as i64, why: head.status()? },
            TAKEN => Frame::Taken { bytes: head.number()? },
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
            LEAVING => Frame::Leaving,
            _ => return Err(Malformed("kind")),
        };
        if head.0.is_empty() { Ok(frame) } else { Err(Malformed("head")) }
    }
}

fn named(kind: u8, name: &Name, out: &mut Vec<u8>) -> u8 {
    put_name(name, out);
    kind
}

fn numbered(kind: u8, number: u64, out: &mut Vec<u8>) -> u8 {
    out.put_u64_le(number);
    kind
}

/// The last in a head: the key is all that is left.
fn put_name(name: &Name, out: &mut Vec<u8>) {
    out.put_i64_le(name.step_id);
    out.put_slice(name.key.as_bytes());
}

/// The last in a head.
fn put_pair(pair: &Pair, out: &mut Vec<u8>) {
    out.put_slice(pair.lender.as_bytes());
    out.put_u8(SEPARATOR as u8);
    out.put_slice(pair.borrower.as_bytes());
}

fn put_form(form: &Form, out: &mut Vec<u8>) {
    out.put_u8(form.dtype.number() as u8);
    out.put_u8(form.shape.rank() as u8);
    form.shape.iter().for_each(|&dim| out.put_u64_le(dim as u64));
}

/// The last in a head: the message is all that is left, or its beginning.
fn put_status(status: &Status, out: &mut Vec<u8>) {
    out.put_u8(status.code.number() as u8);
    out.put_u8(u8::from(status.derived) | u8::from(status.restarted) << 1);
    let most = status.message.len().min(MAX_HEAD / 2);
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

    fn name(&mut self) -> Result<Name, Malformed> {
        Ok(Name { step_id: self.number()? as i64, key: self.rest()?.into() })
    }

    fn pair(&mut self) -> Result<Pair, Malformed> {
        let (lender, borrower) = self.rest()?.split_once(SEPARATOR).ok_or(Malformed("pair of devices"))?;
        Ok(Pair { lender: lender.into(), borrower: borrower.into() })
    }

    fn form(&mut self) -> Result<Form, Malformed> {
        let dtype = DType::from_number(self.byte()?.into()).ok_or(Malformed("type"))?;
        let rank = self.byte()?;
        let dims = (0..rank).map(|_| Ok(self.number()? as i64)).collect::<Result<Vec<i64>, Malformed>>()?;
        Ok(Form { dtype, shape: Shape::from_i64(&dims).map_err(|_| Malformed("shape"))? })
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
        let name = || Name { step_id: -5, key: "a;b;ü".into() };
        let form =
            |dims: &[usize]| Ok::<_, graph::Error>(Form { dtype: DType::Half, shape: Shape::new(dims)? });
        let pair =
            || Pair { lender: "GPU:1".into(), borrower: "/job:w/replica:0/task:0/device:GPU:0".into() };
        let failure = Status::new(Code::Aborted, "why ü").restarted();
        Ok(vec![
            Frame::Elements(name(), form(&[])?),
            Frame::Elements(name(), form(&[0, 3, 1 << 40])?),
            Frame::Message(name()),
            Frame::Dead(name()),
            Frame::Lent { name: name(), form: form(&[7])?, block: 3, loan: u64::MAX },
            Frame::Parcel { name: name(), parcel: 8 },
            Frame::Block { block: 1, len: 1 << 40, place: Place::Host },
            Frame::Block { block: 2, len: 1 << 21, place: Place::Device },
            Frame::Look { block: 2, pair: pair() },
            Frame::Seen { pair: pair(), sees: true },
            Frame::BlockGone { block: 9 },
            Frame::Offer(name()),
            Frame::Run { id: 4, timeout: None },
            Frame::Run { id: 4, timeout: Some(Duration::from_millis(3)) },
            Frame::Cancel { id: 5 },
            Frame::Cleanup { step_id: i64::MIN },
            Frame::Failed { step_id: 7, why: Status::new(Code::Cancelled, "").derived() },
            Frame::Want(name()),
            Frame::Taken { bytes: 12 },
            Frame::Returned { loan: 1 },
            Frame::Ran { id: 2, failure: None },
            Frame::Ran { id: 2, failure: Some(failure) },
            Frame::Leaving,
        ])
    }

    #[test]
    fn frames_are_read_as_they_were_written() -> Result<(), Box<dyn std::error::Error>> {
        for frame in frames()? {
            let mut bytes = Vec::new();
            frame.encode(77, &mut bytes)?;
            let (header, head) = bytes.split_first_chunk().ok_or("short")?;
            let header = Header::decode(header)?;
            assert_eq!((header.head, header.payload), (head.len(), 77), "{frame:?}");
            assert_eq!(Frame::decode(header.kind, head)?, frame);
        }
        Ok(())
    }

    #[test]
    fn what_is_cut_or_changed_is_read_as_something_else_or_refused() -> Result<(), Box<dyn std::error::Error>>
    {
        for frame in frames()? {
            let mut bytes = Vec::new();
            frame.encode(0, &mut bytes)?;
            let head = &bytes[HEADER..];
            for cut in 0..head.len() {
                assert_ne!(Frame::decode(bytes[0], &head[..cut]).ok().as_ref(), Some(&frame));
            }
            for kind in 0..=u8::MAX {
                // Whatever it is taken for, it does not panic.
                let _ = Frame::decode(kind, head);
            }
        }
        assert!(Header::decode(b"GET / HTTP/1.1\r\n").is_err());
        assert!(Header::decode(&[0xff; HEADER]).is_err() && Header::decode(&[0; HEADER]).is_err());
        Ok(())
    }

    #[test]
    fn a_key_without_measure_is_refused_whole() {
        let mut out = vec![1, 2];
        let name = Name { step_id: 1, key: "x".repeat(MAX_HEAD).into() };
        assert!(Frame::Offer(name).encode(0, &mut out).is_err());
        assert_eq!(out, [1, 2]);
    }
}
