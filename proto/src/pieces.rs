//! Answers with tensors, as they are written to a connection: elements of large ones are not copied, but written where
//! they lie. gRPC's head stands before the message.

use crate::grpc::{PREFIX, checked_len};
use crate::pb;
use crate::status::Status;
use bytes::{BufMut, Bytes, BytesMut};
use graph::Code;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use smallvec::SmallVec;

/// Parts of a message, one behind the other.
pub type Pieces = SmallVec<[Bytes; 2]>;

/// Elements of so many bytes and fewer are copied.
const COPIED: usize = 4 << 10;
/// `tensor_content` of a TensorProto.
const CONTENT: u32 = 4;

/// # Errors
/// As [`checked_len`].
pub fn of_step(mut response: pb::RunStepResponse) -> Result<Pieces, Status> {
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

/// # Errors
/// As [`of_step`].
pub fn of_callable(mut response: pb::RunCallableResponse) -> Result<Pieces, Status> {
    let mut out = Writer::new(checked_len(&response)?);
    for tensor in std::mem::take(&mut response.fetch) {
        out.put_tensor(1, tensor)?;
    }
    out.put(&response)?;
    Ok(out.end())
}

struct Writer {
    pieces: Pieces,
    tail: BytesMut,
}

impl Writer {
    /// For a message of so many bytes.
    fn new(len: usize) -> Writer {
        let mut tail = BytesMut::with_capacity(PREFIX + len.min(COPIED));
        tail.put_u8(0);
        tail.put_u32(len as u32);
        Writer { pieces: Pieces::new(), tail }
    }

    /// The head of a field of so many bytes.
    fn begin(&mut self, tag: u32, len: usize) {
        encode_key(tag, WireType::LengthDelimited, &mut self.tail);
        encode_varint(len as u64, &mut self.tail);
    }

    fn put(&mut self, message: &impl Message) -> Result<(), Status> {
        message.encode(&mut self.tail).map_err(|e| Status::new(Code::Internal, e.to_string()))
    }

    fn put_tensor(&mut self, tag: u32, mut tensor: pb::TensorProto) -> Result<(), Status> {
        self.begin(tag, tensor.encoded_len());
        if tensor.tensor_content.len() <= COPIED {
            return self.put(&tensor);
        }
        // Fields may come in any order.
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

    /// What was written, behind its head.
    fn read<M: Message + Default>(pieces: &Pieces) -> Result<M, prost::DecodeError> {
        let bytes = pieces.concat();
        let (head, message) = bytes.split_at(PREFIX);
        assert_eq!(head, [&[0], &(message.len() as u32).to_be_bytes()[..]].concat());
        M::decode(message)
    }

    #[test]
    fn pieces_are_the_message() -> Result<(), Box<dyn std::error::Error>> {
        for lens in [&[][..], &[0], &[3], &[COPIED], &[COPIED + 1], &[100_000, 5, 70_000], &[5, 9000, 0]] {
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
            assert_eq!(read::<pb::RunStepResponse>(&of_step(step.clone())?)?, step);
            let callable = pb::RunCallableResponse { fetch: tensors.clone(), metadata };
            let pieces = of_callable(callable.clone())?;
            assert_eq!(read::<pb::RunCallableResponse>(&pieces)?, callable);
            for large in tensors.iter().filter(|tensor| tensor.tensor_content.len() > COPIED) {
                let at = large.tensor_content.as_ptr();
                assert!(pieces.iter().any(|piece| piece.as_ptr() == at), "{lens:?}: elements were copied");
            }
        }
        let nameless =
            pb::RunStepResponse { tensor: vec![pb::NamedTensorProto::default()], ..Default::default() };
        assert_eq!(read::<pb::RunStepResponse>(&of_step(nameless.clone())?)?, nameless);
        Ok(())
    }
}
