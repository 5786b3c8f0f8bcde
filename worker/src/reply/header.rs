//! The fields in front of a tensor's elements in a RecvTensorResponse.

use super::MAX_HEADER;
use graph::{DType, Shape};
use prost::Message;
use proto::pb;

/// Maximum number of bytes that follow the tensor's elements in a message; a message with more is decoded as a whole.
const MAX_TAIL: usize = 4096;

/// The fields in front of the elements of a plain tensor.
#[derive(Debug)]
pub(super) struct ReplyHeader {
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) is_dead: bool,
    pub(super) send_start_micros: i64,
    pub(super) require_ack: bool,
    /// Length of the encoded fields in front of the elements, bytes.
    pub(super) len: usize,
    /// Length of the tensor's elements, bytes.
    pub(super) content: usize,
}

/// The result of parsing the start of a message.
pub(super) enum Scan {
    Plain(ReplyHeader),
    /// A message that is decoded as a whole: its elements are not plain bytes, or not the last field of the
    /// tensor.
    Other,
    /// A start of a message that ends within the fields in front of the elements: more bytes are needed.
    Short,
}

impl ReplyHeader {
    /// Parses `bytes`, the start of a message of `whole` bytes.
    pub(super) fn scan(bytes: &[u8], whole: usize) -> Scan {
        let mut cursor = Cursor { bytes, at: 0 };
        match ReplyHeader::read(&mut cursor, whole) {
            Ok(Some(header)) => Scan::Plain(header),
            Ok(None) => Scan::Other,
            Err(Short) => Scan::Short,
        }
    }

    /// Parses the fields; `Ok(None)` if the message has another order or another encoding of elements.
    fn read(cursor: &mut Cursor<'_>, whole: usize) -> Result<Option<ReplyHeader>, Short> {
        let (mut is_dead, mut send_start_micros, mut require_ack) = (false, 0, false);
        let tensor_len = loop {
            if cursor.at >= whole {
                return Ok(None);
            }
            match cursor.byte()? {
                0x10 => is_dead = cursor.varint()? != 0,
                0x18 => send_start_micros = cursor.varint()? as i64,
                0x28 => require_ack = cursor.varint()? != 0,
                0x0a => break cursor.varint()?,
                _ => return Ok(None),
            }
        };
        let Some(end) = end_of(cursor.at, tensor_len).filter(|&end| end <= whole) else { return Ok(None) };
        let (mut dtype, mut shape) = (None, Shape::scalar());
        let content = loop {
            if cursor.at >= end {
                return Ok(None);
            }
            match cursor.byte()? {
                0x08 => dtype = i32::try_from(cursor.varint()?).ok().and_then(DType::from_number),
                0x12 => {
                    let len = cursor.varint()?;
                    let Some(read) = cursor.take(len)?.and_then(read_shape) else { return Ok(None) };
                    shape = read;
                }
                0x18 => {
                    cursor.varint()?;
                }
                0x22 => break cursor.varint()?,
                _ => return Ok(None),
            }
        };
        let size = dtype.and_then(DType::size).and_then(|size| size.checked_mul(shape.num_elements()));
        let (Some(dtype), Some(size)) = (dtype, size) else { return Ok(None) };
        let fits = content == size as u64 && end_of(cursor.at, content) == Some(end);
        if !fits || whole - end > MAX_TAIL {
            return Ok(None);
        }
        let len = cursor.at;
        Ok(Some(ReplyHeader { dtype, shape, is_dead, send_start_micros, require_ack, len, content: size }))
    }
}

fn end_of(at: usize, len: u64) -> Option<usize> {
    at.checked_add(usize::try_from(len).ok()?)
}

fn read_shape(bytes: &[u8]) -> Option<Shape> {
    let message = pb::TensorShapeProto::decode(bytes).ok()?;
    if message.unknown_rank {
        return None;
    }
    let dims: Vec<i64> = message.dim.iter().map(|d| d.size).collect();
    Shape::from_i64(&dims).ok()
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The error for input that ends within a field.
struct Short;

impl<'a> Cursor<'a> {
    fn byte(&mut self) -> Result<u8, Short> {
        let byte = self.bytes.get(self.at).copied().ok_or(Short)?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads a varint; bits beyond the 64th are dropped, as protobuf requires.
    fn varint(&mut self) -> Result<u64, Short> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Ok(u64::MAX)
    }

    /// Returns the next `len` bytes; `Ok(None)` if `len` exceeds [`MAX_HEADER`], the length of the longest
    /// valid header.
    fn take(&mut self, len: u64) -> Result<Option<&'a [u8]>, Short> {
        let Some(end) = end_of(self.at, len).filter(|_| len <= MAX_HEADER as u64) else { return Ok(None) };
        let taken = self.bytes.get(self.at..end).ok_or(Short)?;
        self.at = end;
        Ok(Some(taken))
    }
}
