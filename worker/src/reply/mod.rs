//! The encoding of answers to RecvTensor as gRPC messages. Neither the sender nor the receiver copies a tensor's
//! elements into a protobuf message. This module uses no sockets.

mod header;
mod read;

pub(crate) use read::ReplyReader;

use bytes::{BufMut, Bytes, BytesMut};
use graph::{Buffer, Code, DType, Shape, Tensor};
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};
use proto::convert::{tensor_from_proto, tensor_to_proto};
use proto::grpc::{MAX_MESSAGE_SIZE, PREFIX};
use proto::{Status, pb};
use std::sync::Arc;

/// Maximum number of bytes of elements that are copied behind the header, into the same slice: copying a few bytes
/// costs less than writing another slice.
const MAX_COPIED: usize = 1024;
/// Largest number of bytes of a message in front of the tensor's elements; a message with more is decoded as a whole.
const MAX_HEADER: usize = 4096;

/// The content of an answer to RecvTensor: the tensor and whether it is dead.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) tensor: Tensor,
    pub(crate) is_dead: bool,
    pub(crate) send_start_micros: i64,
    /// Set if the sender retains the reply until the receiver acknowledges it.
    pub(crate) require_ack: bool,
}

impl Reply {
    pub(crate) fn new(tensor: Tensor) -> Reply {
        Reply { tensor, is_dead: false, send_start_micros: 0, require_ack: false }
    }

    /// Returns the reply for a dead tensor: a float tensor without elements, whatever the type of the edge.
    pub(crate) fn dead() -> Result<Reply, Status> {
        let tensor = Tensor::zeros(DType::Float, Shape::new(&[0])?)?;
        Ok(Reply { is_dead: true, ..Reply::new(tensor) })
    }

    /// Encodes the reply as one gRPC message: the header, and the elements as a second slice if they are
    /// long.
    ///
    /// # Errors
    /// `ResourceExhausted` beyond protobuf's size limit; `Unimplemented` for types that cannot be
    /// transferred.
    pub(crate) fn encode(&self) -> Result<(Bytes, Option<Bytes>), Status> {
        match self.tensor.bytes() {
            Ok(elements) => self.encode_plain(elements),
            Err(_) => self.encode_message(),
        }
    }

    /// Encodes a tensor whose dtype has plain `elements`. The fields are in the order that TensorFlow's own
    /// fast path expects: `tensor` is the last field of the message, and the elements are the last field of
    /// the tensor.
    fn encode_plain(&self, elements: &[u8]) -> Result<(Bytes, Option<Bytes>), Status> {
        let (shape, len) = (self.tensor.shape(), elements.len());
        let shape_len: usize = shape.iter().map(|&d| 1 + sized(dim_len(d))).sum();
        let shape_field = if shape.rank() == 0 { 0 } else { 1 + sized(shape_len) };
        let dtype = self.tensor.dtype().number() as u64;
        let tensor_len = 1 + encoded_len_varint(dtype) + shape_field + 1 + sized(len);
        let mut header = BytesMut::with_capacity(64 + shape_len + if len > MAX_COPIED { 0 } else { len });
        header.put_bytes(0, PREFIX);
        if self.is_dead {
            header.put_slice(&[0x10, 1]);
        }
        header.put_u8(0x18);
        encode_varint(self.send_start_micros as u64, &mut header);
        if self.require_ack {
            header.put_slice(&[0x28, 1]);
        }
        header.put_u8(0x0a);
        encode_varint(tensor_len as u64, &mut header);
        header.put_u8(0x08);
        encode_varint(dtype, &mut header);
        if shape.rank() > 0 {
            header.put_u8(0x12);
            encode_varint(shape_len as u64, &mut header);
            for &dim in shape.iter() {
                header.put_u8(0x12);
                encode_varint(dim_len(dim) as u64, &mut header);
                if dim > 0 {
                    header.put_u8(0x08);
                    encode_varint(dim as u64, &mut header);
                } else {
                    header.put_slice(&[0x08, 0]);
                }
            }
        }
        header.put_u8(0x22);
        encode_varint(len as u64, &mut header);
        let whole = header.len() - PREFIX + len;
        set_prefix(&mut header, whole)?;
        let needs_slice = len > MAX_COPIED;
        match needs_slice.then(|| self.tensor.buffer()).flatten() {
            Some(buffer) => Ok((header.freeze(), Some(Bytes::from_owner(BufferOwner(buffer))))),
            None => {
                header.put_slice(elements);
                Ok((header.freeze(), None))
            }
        }
    }

    /// Encodes a tensor whose dtype has no plain elements, such as strings, as a protobuf message.
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

/// Returns the size of a length-delimited field without its tag.
fn sized(len: usize) -> usize {
    encoded_len_varint(len as u64) + len
}

/// Returns the encoded length of a dimension. A size of zero is written too, like TensorFlow does.
fn dim_len(dim: usize) -> usize {
    1 + encoded_len_varint(dim as u64)
}

/// Sets the message length in gRPC's message header.
fn set_prefix(header: &mut BytesMut, len: usize) -> Result<(), Status> {
    match u32::try_from(len) {
        Ok(short) if len <= MAX_MESSAGE_SIZE => {
            header[1..PREFIX].copy_from_slice(&short.to_be_bytes());
            Ok(())
        }
        _ => Err(Status::new(
            Code::ResourceExhausted,
            format!("a message of {len} bytes is over the limit of {MAX_MESSAGE_SIZE}"),
        )),
    }
}

/// The owner of the second slice of a message, which keeps the tensor's buffer alive until the slice is
/// written.
struct BufferOwner(Arc<Buffer>);

impl AsRef<[u8]> for BufferOwner {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

fn malformed(what: &str) -> Status {
    Status::new(Code::Internal, format!("malformed answer to RecvTensor: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(reply: &Reply) -> Result<Bytes, Status> {
        let (header, payload) = reply.encode()?;
        Ok([header, payload.unwrap_or_default()].concat().into())
    }

    fn read(bytes: &Bytes, step: usize) -> Result<Reply, Status> {
        let mut reader = ReplyReader::default();
        for start in (0..bytes.len()).step_by(step) {
            reader.push(bytes.slice(start..(start + step).min(bytes.len())))?;
        }
        reader.finish()
    }

    /// Encodes the reply by protobuf, with the fields in the order of their numbers: the tensor first.
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
    fn replies_are_decoded_from_any_chunks() -> Result<(), Status> {
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
    fn bytes_are_those_of_tensorflow() -> Result<(), Status> {
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
    fn malformed_replies_are_refused() -> Result<(), Status> {
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
        // Elements whose length does not match the shape are decoded by protobuf and refused there.
        let mut wrong = BytesMut::from(&whole(&Reply::new(Tensor::scalar(1i32)))?[..]);
        wrong[PREFIX + 5] = 2;
        assert!(read(&wrong.freeze(), 64).is_err());
        Ok(())
    }
}
