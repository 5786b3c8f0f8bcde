//! Responses with tensors, encoded as pieces for a connection. The elements of large tensors are not copied,
//! but written from the tensor's memory. The gRPC prefix precedes the message.

use crate::grpc::{PREFIX, checked_len};
use crate::pb;
use crate::status::Status;
use bytes::{BufMut, Bytes, BytesMut};
use graph::Code;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use smallvec::SmallVec;

/// The consecutive pieces of an encoded message.
pub type Pieces = SmallVec<[Bytes; 2]>;

/// Maximum size of a tensor's elements that are copied into a piece, bytes.
const MAX_COPIED: usize = 4 << 10;
/// The field number of `tensor_content` in a TensorProto.
const CONTENT: u32 = 4;

/// Encodes the response of a RunStep call.
///
/// # Errors
/// The errors of [`checked_len`].
pub fn encode_step(mut response: pb::RunStepResponse) -> Result<Pieces, Status> {
    let mut out = Writer::new(checked_len(&response)?);
    for mut named in std::mem::take(&mut response.tensor) {
        out.begin(1, named.encoded_len());
        let tensor = named.tensor.take();
        out.put(&named)?;
        if let Some(tensor) = tensor {
            out.put_tensor(2, tensor)?;
        }
    }
    out.put(&response)?;
    Ok(out.end())
}

/// Encodes the response of a RunCallable call.
///
/// # Errors
/// The errors of [`checked_len`].
pub fn encode_callable(mut response: pb::RunCallableResponse) -> Result<Pieces, Status> {
    let mut out = Writer::new(checked_len(&response)?);
    for tensor in std::mem::take(&mut response.fetch) {
        out.put_tensor(1, tensor)?;
    }
    out.put(&response)?;
    Ok(out.end())
}

/// An encoder of one message into pieces.
struct Writer {
    pieces: Pieces,
    tail: BytesMut,
}

impl Writer {
    /// Starts a message of `len` bytes with its gRPC prefix.
    fn new(len: usize) -> Writer {
        let mut tail = BytesMut::with_capacity(PREFIX + len.min(MAX_COPIED));
        tail.put_u8(0);
        tail.put_u32(len as u32);
        Writer { pieces: Pieces::new(), tail }
    }

    /// Writes the key and the length of a field whose value has `len` bytes.
    fn begin(&mut self, tag: u32, len: usize) {
        encode_key(tag, WireType::LengthDelimited, &mut self.tail);
        encode_varint(len as u64, &mut self.tail);
    }

    fn put(&mut self, message: &impl Message) -> Result<(), Status> {
        message.encode(&mut self.tail).map_err(|e| Status::new(Code::Internal, e.to_string()))
    }

    fn put_tensor(&mut self, tag: u32, mut tensor: pb::TensorProto) -> Result<(), Status> {
        self.begin(tag, tensor.encoded_len());
        if tensor.tensor_content.len() <= MAX_COPIED {
            return self.put(&tensor);
        }
        // The fields of a message may be in any order, so the content can be written last.
        let content = std::mem::take(&mut tensor.tensor_content);
        self.put(&tensor)?;
        self.begin(CONTENT, content.len());
        self.pieces.extend([self.tail.split().freeze(), content]);
        Ok(())
    }

    fn end(mut self) -> Pieces {
        if !self.tail.is_empty() {
            self.pieces.push(self.tail.freeze());
        }
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::shape_to_proto;
    use graph::{DType, Shape};

    fn tensor(len: usize) -> Result<pb::TensorProto, graph::Error> {
        Ok(pb::TensorProto {
            dtype: DType::UInt8.number(),
            tensor_shape: Some(shape_to_proto(&Shape::new(&[len])?)),
            tensor_content: vec![len as u8; len].into(),
            ..Default::default()
        })
    }

    /// Decodes the message behind its gRPC prefix.
    fn read<M: Message + Default>(pieces: &Pieces) -> Result<M, prost::DecodeError> {
        let bytes = pieces.concat();
        let (head, message) = bytes.split_at(PREFIX);
        assert_eq!(head, [&[0], &(message.len() as u32).to_be_bytes()[..]].concat());
        M::decode(message)
    }

    #[test]
    fn concatenated_pieces_are_the_message() -> Result<(), Box<dyn std::error::Error>> {
        for lens in
            [&[][..], &[0], &[3], &[MAX_COPIED], &[MAX_COPIED + 1], &[100_000, 5, 70_000], &[5, 9000, 0]]
        {
            let tensors = lens.iter().map(|&len| tensor(len)).collect::<Result<Vec<_>, _>>()?;
            let named = |(i, tensor): (usize, &pb::TensorProto)| pb::NamedTensorProto {
                name: format!("x:{i}"),
                tensor: Some(tensor.clone()),
            };
            let metadata = Some(pb::RunMetadata::default());
            let step = pb::RunStepResponse {
                tensor: tensors.iter().enumerate().map(named).collect(),
                metadata: metadata.clone(),
                status_error_message: "none".into(),
                ..Default::default()
            };
            assert_eq!(read::<pb::RunStepResponse>(&encode_step(step.clone())?)?, step);
            let callable = pb::RunCallableResponse { fetch: tensors.clone(), metadata };
            let pieces = encode_callable(callable.clone())?;
            assert_eq!(read::<pb::RunCallableResponse>(&pieces)?, callable);
            for large in tensors.iter().filter(|tensor| tensor.tensor_content.len() > MAX_COPIED) {
                let at = large.tensor_content.as_ptr();
                assert!(pieces.iter().any(|piece| piece.as_ptr() == at), "{lens:?}: elements were copied");
            }
        }
        let nameless =
            pb::RunStepResponse { tensor: vec![pb::NamedTensorProto::default()], ..Default::default() };
        assert_eq!(read::<pb::RunStepResponse>(&encode_step(nameless.clone())?)?, nameless);
        Ok(())
    }
}
