//! The answer to RecvTensor as bytes: plain gRPC on the wire, but a tensor's elements are neither copied into a
//! message on the way out nor out of one on the way in. No sockets here.

use bytes::{BufMut, Bytes, BytesMut};
use graph::{Buffer, Code, DType, Shape, Tensor};
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};
use proto::convert::{tensor_from_proto, tensor_to_proto};
use proto::grpc::MAX_MESSAGE_SIZE;
use proto::{Status, pb};
use std::sync::Arc;

/// gRPC's own header of a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Elements up to here are copied behind the header: a write of their own costs more, bytes.
const INLINE: usize = 1024;
/// What may stand before the elements; a message with more is read whole, bytes.
const MAX_HEADER: usize = 4096;
/// What may stand after the elements, bytes.
const MAX_TAIL: usize = 4096;

/// A value on its way from one task to another.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) tensor: Tensor,
    pub(crate) is_dead: bool,
    pub(crate) send_start_micros: i64,
    /// The sender keeps the reply until it hears that it arrived.
    pub(crate) require_ack: bool,
}

impl Reply {
    pub(crate) fn new(tensor: Tensor) -> Reply {
        Reply { tensor, is_dead: false, send_start_micros: 0, require_ack: false }
    }

    /// What a dead edge carries, whatever its type: no elements, of type float.
    pub(crate) fn dead() -> Result<Reply, Status> {
        let tensor = Tensor::zeros(DType::Float, Shape::new(&[0])?)?;
        Ok(Reply { is_dead: true, ..Reply::new(tensor) })
    }

    /// The reply as one message of gRPC, in one slice or two.
    ///
    /// # Errors
    /// `ResourceExhausted` beyond the format's limit; `Unimplemented` for types that do not travel.
    pub(crate) fn encode(&self) -> Result<(Bytes, Option<Bytes>), Status> {
        match self.tensor.buffer() {
            Some(buffer) => self.encode_plain(buffer),
            None => self.encode_message(),
        }
    }

    /// In the order that the peer's own fast path reads: `tensor` last, its elements last in it.
    fn encode_plain(&self, buffer: &Arc<Buffer>) -> Result<(Bytes, Option<Bytes>), Status> {
        let (shape, len) = (self.tensor.shape(), buffer.len());
        let shape_len: usize = shape.iter().map(|&d| 1 + sized(dim_len(d))).sum();
        let shape_field = if shape.rank() == 0 { 0 } else { 1 + sized(shape_len) };
        let dtype = self.tensor.dtype().number() as u64;
        let tensor_len = 1 + encoded_len_varint(dtype) + shape_field + 1 + sized(len);
        let mut head = BytesMut::with_capacity(64 + shape_len + if len > INLINE { 0 } else { len });
        head.put_bytes(0, PREFIX);
        if self.is_dead {
            head.put_slice(&[0x10, 1]);
        }
        head.put_u8(0x18);
        encode_varint(self.send_start_micros as u64, &mut head);
        if self.require_ack {
            head.put_slice(&[0x28, 1]);
        }
        head.put_u8(0x0a);
        encode_varint(tensor_len as u64, &mut head);
        head.put_u8(0x08);
        encode_varint(dtype, &mut head);
        if shape.rank() > 0 {
            head.put_u8(0x12);
            encode_varint(shape_len as u64, &mut head);
            for &dim in shape.iter() {
                head.put_u8(0x12);
                encode_varint(dim_len(dim) as u64, &mut head);
                if dim > 0 {
                    head.put_u8(0x08);
                    encode_varint(dim as u64, &mut head);
                } else {
                    head.put_slice(&[0x08, 0]);
                }
            }
        }
        head.put_u8(0x22);
        encode_varint(len as u64, &mut head);
        let whole = head.len() - PREFIX + len;
        set_prefix(&mut head, whole)?;
        if len <= INLINE {
            head.put_slice(buffer.as_slice());
            return Ok((head.freeze(), None));
        }
        Ok((head.freeze(), Some(Bytes::from_owner(Shared(buffer.clone())))))
    }

    /// Types without plain elements, by the message itself.
    fn encode_message(&self) -> Result<(Bytes, Option<Bytes>), Status> {
        let message = self.to_proto();
        let len = message.encoded_len();
        let mut out = BytesMut::with_capacity(PREFIX + len.min(MAX_MESSAGE_SIZE));
        out.put_bytes(0, PREFIX);
        set_prefix(&mut out, len)?;
        message.encode(&mut out).map_err(|e| Status::new(Code::Internal, e.to_string()))?;
        Ok((out.freeze(), None))
    }

    pub(crate) fn to_proto(&self) -> pb::RecvTensorResponse {
        pb::RecvTensorResponse {
            tensor: Some(tensor_to_proto(&self.tensor)),
            is_dead: self.is_dead,
            send_start_micros: self.send_start_micros,
            require_ack: self.require_ack,
            ..Default::default()
        }
    }

    fn from_proto(message: pb::RecvTensorResponse) -> Result<Reply, Status> {
        if message.is_dead {
            let ends = Reply { require_ack: message.require_ack, ..Reply::dead()? };
            return Ok(Reply { send_start_micros: message.send_start_micros, ..ends });
        }
        Ok(Reply {
            tensor: tensor_from_proto(message.tensor.unwrap_or_default())?,
            is_dead: false,
            send_start_micros: message.send_start_micros,
            require_ack: message.require_ack,
        })
    }
}

/// A length-delimited field's size without its tag.
fn sized(len: usize) -> usize {
    encoded_len_varint(len as u64) + len
}

/// A dimension's size is written even where it is zero, as the peer does.
fn dim_len(dim: usize) -> usize {
    1 + encoded_len_varint(dim as u64)
}

fn set_prefix(head: &mut BytesMut, len: usize) -> Result<(), Status> {
    match u32::try_from(len) {
        Ok(short) if len <= MAX_MESSAGE_SIZE => {
            head[1..PREFIX].copy_from_slice(&short.to_be_bytes());
            Ok(())
        }
        _ => Err(Status::new(
            Code::ResourceExhausted,
            format!("a message of {len} bytes is over the limit of {MAX_MESSAGE_SIZE}"),
        )),
    }
}

/// Keeps a tensor's storage alive until it is written.
struct Shared(Arc<Buffer>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// Reads a reply from chunks as they come, a tensor's elements straight into their place.
#[derive(Debug, Default)]
pub(crate) struct ReplyReader {
    /// Bytes of the prefix and the header, or of the whole message, or of what follows the elements.
    held: BytesMut,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Prefix,
    /// Of a message of this length.
    Header(usize),
    /// Read whole, then decoded: the message's length.
    Whole(usize),
    Elements(Elements),
    Tail(Elements),
}

#[derive(Debug)]
struct Elements {
    head: Head,
    buffer: Buffer,
    filled: usize,
    /// Bytes of the message behind the elements.
    tail: usize,
}

impl ReplyReader {
    /// Takes the next bytes of the body.
    ///
    /// # Errors
    /// What is no reply, or one that memory does not suffice for.
    pub(crate) fn push(&mut self, mut chunk: Bytes) -> Result<(), Status> {
        loop {
            match &mut self.state {
                State::Prefix => {
                    self.hold(&mut chunk, PREFIX);
                    if self.held.len() < PREFIX {
                        return Ok(());
                    }
                    let len = read_prefix(&self.held)?;
                    self.held.clear();
                    self.state = State::Header(len);
                }
                State::Header(len) => {
                    let len = *len;
                    self.hold(&mut chunk, len.min(MAX_HEADER));
                    match Head::scan(&self.held, len) {
                        Scan::Plain(head) => self.start_elements(head, len)?,
                        Scan::Other => self.state = State::Whole(len),
                        Scan::Short if self.held.len() == len.min(MAX_HEADER) => {
                            self.state = State::Whole(len);
                        }
                        Scan::Short => return Ok(()),
                    }
                }
                State::Elements(elements) => {
                    elements.fill(&mut chunk);
                    if elements.filled < elements.buffer.len() {
                        return Ok(());
                    }
                    match std::mem::take(&mut self.state) {
                        State::Elements(elements) => self.state = State::Tail(elements),
                        other => self.state = other,
                    }
                }
                State::Tail(Elements { tail: len, .. }) | State::Whole(len) => {
                    let len = *len;
                    self.hold(&mut chunk, len);
                    return if chunk.is_empty() { Ok(()) } else { Err(malformed("more than one message")) };
                }
            }
        }
    }

    /// Moves bytes to `held` until it has `upto`.
    fn hold(&mut self, chunk: &mut Bytes, upto: usize) {
        let missing = upto.saturating_sub(self.held.len()).min(chunk.len());
        self.held.extend_from_slice(&chunk.split_to(missing));
    }

    fn start_elements(&mut self, head: Head, len: usize) -> Result<(), Status> {
        let buffer = Buffer::unspecified(head.content)?;
        let tail = len - head.len - head.content;
        let mut rest = self.held.split_off(head.len).freeze();
        self.held.clear();
        let mut elements = Elements { head, buffer, filled: 0, tail };
        elements.fill(&mut rest);
        self.held.extend_from_slice(&rest);
        self.state = State::Elements(elements);
        Ok(())
    }

    /// The reply, once the body has ended.
    ///
    /// # Errors
    /// `Internal` if it ended early.
    pub(crate) fn finish(self) -> Result<Reply, Status> {
        match self.state {
            State::Tail(elements) if self.held.len() == elements.tail => {
                let Elements { head, buffer, .. } = elements;
                let rest =
                    pb::RecvTensorResponse::decode(self.held).map_err(|e| malformed(&e.to_string()))?;
                if rest.tensor.is_some() {
                    return Err(malformed("two tensors"));
                }
                let is_dead = head.is_dead || rest.is_dead;
                let tensor = Tensor::from_buffer(head.dtype, head.shape, buffer)?;
                Ok(Reply {
                    tensor,
                    is_dead,
                    send_start_micros: head.send_start_micros.max(rest.send_start_micros),
                    require_ack: head.require_ack || rest.require_ack,
                })
            }
            State::Whole(len) | State::Header(len) if self.held.len() == len => {
                let message = pb::RecvTensorResponse::decode(self.held.freeze())
                    .map_err(|e| malformed(&e.to_string()))?;
                Reply::from_proto(message)
            }
            _ => Err(malformed("it ended early")),
        }
    }
}

impl Elements {
    fn fill(&mut self, chunk: &mut Bytes) {
        let part = chunk.split_to(chunk.len().min(self.buffer.len() - self.filled));
        let end = self.filled + part.len();
        self.buffer.as_mut_slice()[self.filled..end].copy_from_slice(&part);
        self.filled = end;
    }
}

fn malformed(what: &str) -> Status {
    Status::new(Code::Internal, format!("malformed answer to RecvTensor: {what}"))
}

fn read_prefix(held: &[u8]) -> Result<usize, Status> {
    match *held {
        [0, a, b, c, d] => {
            let len = u32::from_be_bytes([a, b, c, d]) as usize;
            if len > MAX_MESSAGE_SIZE { Err(malformed("it is over the size limit")) } else { Ok(len) }
        }
        _ => Err(malformed("it is compressed, which was not asked for")),
    }
}

/// All that stands before the elements of a plain tensor.
#[derive(Debug)]
struct Head {
    dtype: DType,
    shape: Shape,
    is_dead: bool,
    send_start_micros: i64,
    require_ack: bool,
    /// Bytes of the head itself, and of the elements.
    len: usize,
    content: usize,
}

enum Scan {
    Plain(Head),
    /// Elements do not come as plain bytes, or not at the tensor's end.
    Other,
    /// More bytes are needed.
    Short,
}

impl Head {
    /// Reads the start of a message of `whole` bytes.
    fn scan(bytes: &[u8], whole: usize) -> Scan {
        let mut cursor = Cursor { bytes, at: 0 };
        match Head::read(&mut cursor, whole) {
            Ok(Some(head)) => Scan::Plain(head),
            Ok(None) => Scan::Other,
            Err(Short) => Scan::Short,
        }
    }

    fn read(cursor: &mut Cursor<'_>, whole: usize) -> Result<Option<Head>, Short> {
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
        Ok(Some(Head { dtype, shape, is_dead, send_start_micros, require_ack, len, content: size }))
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

/// There are not enough bytes yet.
struct Short;

impl<'a> Cursor<'a> {
    fn byte(&mut self) -> Result<u8, Short> {
        let byte = self.bytes.get(self.at).copied().ok_or(Short)?;
        self.at += 1;
        Ok(byte)
    }

    /// Bits beyond the 64th are lost, as protobuf has it.
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

    /// `None` if they could not be part of a header.
    fn take(&mut self, len: u64) -> Result<Option<&'a [u8]>, Short> {
        let Some(end) = end_of(self.at, len).filter(|_| len <= MAX_HEADER as u64) else { return Ok(None) };
        let taken = self.bytes.get(self.at..end).ok_or(Short)?;
        self.at = end;
        Ok(Some(taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(reply: &Reply) -> Result<Bytes, Status> {
        let (head, payload) = reply.encode()?;
        Ok([head, payload.unwrap_or_default()].concat().into())
    }

    fn read(bytes: &Bytes, step: usize) -> Result<Reply, Status> {
        let mut reader = ReplyReader::default();
        for start in (0..bytes.len()).step_by(step) {
            reader.push(bytes.slice(start..(start + step).min(bytes.len())))?;
        }
        reader.finish()
    }

    /// With the fields in the order of their numbers: the tensor first.
    fn message(reply: &Reply) -> Result<Bytes, Status> {
        let mut out = BytesMut::new();
        out.put_bytes(0, PREFIX);
        reply.to_proto().encode(&mut out).map_err(|e| malformed(&e.to_string()))?;
        let len = out.len() - PREFIX;
        set_prefix(&mut out, len)?;
        Ok(out.freeze())
    }

    fn tensors() -> Result<Vec<Tensor>, Status> {
        let wide: Vec<f32> = (0..3000).map(|i| i as f32).collect();
        Ok(vec![
            Tensor::scalar(7i32),
            Tensor::scalar(1.5f64),
            Tensor::zeros(DType::Float, Shape::new(&[0, 3])?)?,
            Tensor::from_slice(&wide, Shape::new(&[30, 100])?)?,
            Tensor::vector(&wide[..256])?,
            Tensor::bools(&[true, false, true], Shape::new(&[3, 1])?)?,
            Tensor::string("a string"),
            Tensor::strings(vec!["".into(), vec![7u8; 5000].into()], Shape::new(&[2])?)?,
            Tensor::strings(vec![], Shape::new(&[0])?)?,
        ])
    }

    #[test]
    fn replies_survive_any_cut_into_chunks() -> Result<(), Status> {
        for tensor in tensors()? {
            let reply = Reply { send_start_micros: 1 << 50, require_ack: true, ..Reply::new(tensor.clone()) };
            for bytes in [whole(&reply)?, message(&reply)?] {
                for step in [1, 2, 7, 100, 4096, 1 << 20] {
                    let back = read(&bytes, step)?;
                    assert_eq!(back.tensor, tensor);
                    assert_eq!(
                        (back.send_start_micros, back.require_ack, back.is_dead),
                        (1 << 50, true, false)
                    );
                }
            }
        }
        Ok(())
    }

    #[test]
    fn bytes_are_the_peers() -> Result<(), Status> {
        let reply = Reply { send_start_micros: 0x46, ..Reply::new(0i32.into()) };
        assert_eq!(whole(&reply)?[PREFIX..], [0x18, 0x46, 0x0a, 0x08, 0x08, 3, 0x22, 4, 0, 0, 0, 0],);
        let empty = Reply::new(Tensor::zeros(DType::Float, Shape::new(&[0, 3])?)?);
        let expected = [0x18, 0, 0x0a, 0x0e, 0x08, 1, 0x12, 8, 0x12, 2, 8, 0, 0x12, 2, 8, 3, 0x22, 0];
        assert_eq!(whole(&empty)?[PREFIX..], expected);
        let dead = Reply::dead()?;
        assert_eq!(whole(&dead)?[PREFIX..PREFIX + 2], [0x10, 1]);
        assert!(read(&whole(&dead)?, 3)?.is_dead);
        Ok(())
    }

    #[test]
    fn what_is_broken_is_an_error() -> Result<(), Status> {
        let good = whole(&Reply::new(Tensor::vector(&[1.0f32; 600])?))?;
        for cut in [0, 3, PREFIX, PREFIX + 1, 20, good.len() - 1] {
            assert!(read(&good.slice(..cut), 64).is_err(), "{cut}");
        }
        let mut longer = BytesMut::from(&good[..]);
        longer.put_u8(0);
        assert!(read(&longer.freeze(), 64).is_err());
        let mut compressed = BytesMut::from(&good[..]);
        compressed[0] = 1;
        assert!(read(&compressed.freeze(), 64).is_err());
        // Content whose length is not the shape's goes the long way, and is refused there.
        let mut wrong = BytesMut::from(&whole(&Reply::new(Tensor::scalar(1i32)))?[..]);
        wrong[PREFIX + 5] = 2;
        assert!(read(&wrong.freeze(), 64).is_err());
        Ok(())
    }

    #[test]
    fn a_stated_size_takes_no_memory_before_it_is_believed() {
        // A vector of 2^40 floats in a message of 2^31 - 1 bytes cannot be.
        let mut bytes = BytesMut::new();
        bytes.put_u8(0);
        bytes.put_u32(i32::MAX as u32);
        bytes.put_slice(&[0x0a, 0xf0, 0xff, 0xff, 0xff, 0x07, 0x08, 1, 0x12, 8, 0x12, 6, 8]);
        encode_varint(1 << 40, &mut bytes);
        bytes.put_slice(&[0x22, 0xd0, 0xff, 0xff, 0xff, 0x07]);
        let mut reader = ReplyReader::default();
        assert!(reader.push(bytes.freeze()).is_ok());
        assert!(matches!(reader.state, State::Whole(_)));
        assert!(reader.finish().is_err());
    }
}
