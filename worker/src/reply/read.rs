//! The decoder of RecvTensor replies, for bodies that arrive in chunks.

use super::header::{ReplyHeader, Scan};
use super::{MAX_HEADER, Reply, malformed};
use bytes::{Bytes, BytesMut};
use graph::{Buffer, Tensor};
use prost::Message;
use proto::grpc::{MAX_MESSAGE_SIZE, PREFIX};
use proto::{Status, pb};

/// The decoder of a reply's body, which copies a tensor's elements from the received chunks into the tensor's
/// buffer.
#[derive(Debug, Default)]
pub(crate) struct ReplyReader {
    /// The received bytes of the part that `state` names, except a tensor's elements.
    buffered: BytesMut,
    state: ReadState,
}

/// The part of the reply that the next bytes belong to.
#[derive(Debug, Default)]
enum ReadState {
    #[default]
    Prefix,
    /// The header of a message of this length.
    Header(usize),
    /// A message of this length that is decoded as a whole.
    Whole(usize),
    Elements(Elements),
    Tail(Elements),
}

#[derive(Debug)]
struct Elements {
    header: ReplyHeader,
    buffer: Buffer,
    filled: usize,
    /// Length of the message behind the elements, bytes.
    tail: usize,
}

impl ReplyReader {
    /// Processes the next chunk of the body.
    ///
    /// # Errors
    /// For a malformed reply, or a tensor that there is no memory for.
    pub(crate) fn push(&mut self, mut chunk: Bytes) -> Result<(), Status> {
        loop {
            match &mut self.state {
                ReadState::Prefix => {
                    self.buffer_up_to(&mut chunk, PREFIX);
                    if self.buffered.len() < PREFIX {
                        return Ok(());
                    }
                    let len = read_prefix(&self.buffered)?;
                    self.buffered.clear();
                    self.state = ReadState::Header(len);
                }
                ReadState::Header(len) => {
                    let len = *len;
                    self.buffer_up_to(&mut chunk, len.min(MAX_HEADER));
                    match ReplyHeader::scan(&self.buffered, len) {
                        Scan::Plain(header) => self.start_elements(header, len)?,
                        Scan::Other => self.state = ReadState::Whole(len),
                        Scan::Short if self.buffered.len() == len.min(MAX_HEADER) => {
                            self.state = ReadState::Whole(len);
                        }
                        Scan::Short => return Ok(()),
                    }
                }
                ReadState::Elements(elements) => {
                    elements.fill(&mut chunk);
                    if elements.filled < elements.buffer.len() {
                        return Ok(());
                    }
                    match std::mem::take(&mut self.state) {
                        ReadState::Elements(elements) => self.state = ReadState::Tail(elements),
                        other => self.state = other,
                    }
                }
                ReadState::Tail(Elements { tail: len, .. }) | ReadState::Whole(len) => {
                    let len = *len;
                    self.buffer_up_to(&mut chunk, len);
                    return if chunk.is_empty() { Ok(()) } else { Err(malformed("more than one message")) };
                }
            }
        }
    }

    /// Moves bytes from `chunk` to `buffered` until `buffered` has `upto` bytes or the chunk is empty.
    fn buffer_up_to(&mut self, chunk: &mut Bytes, upto: usize) {
        let missing = upto.saturating_sub(self.buffered.len()).min(chunk.len());
        self.buffered.extend_from_slice(&chunk.split_to(missing));
    }

    /// Allocates the tensor's buffer and copies the elements that are in `buffered` behind the header.
    fn start_elements(&mut self, header: ReplyHeader, len: usize) -> Result<(), Status> {
        let buffer = Buffer::unspecified(header.content)?;
        let tail = len - header.len - header.content;
        let mut rest = self.buffered.split_off(header.len).freeze();
        self.buffered.clear();
        let mut elements = Elements { header, buffer, filled: 0, tail };
        elements.fill(&mut rest);
        self.buffered.extend_from_slice(&rest);
        self.state = ReadState::Elements(elements);
        Ok(())
    }

    /// Returns the reply after the body has ended.
    ///
    /// # Errors
    /// `Internal` if the body ended early.
    pub(crate) fn finish(self) -> Result<Reply, Status> {
        match self.state {
            ReadState::Tail(elements) if self.buffered.len() == elements.tail => {
                let Elements { header, buffer, .. } = elements;
                let rest =
                    pb::RecvTensorResponse::decode(self.buffered).map_err(|e| malformed(&e.to_string()))?;
                if rest.tensor.is_some() {
                    return Err(malformed("two tensors"));
                }
                let is_dead = header.is_dead || rest.is_dead;
                let tensor = Tensor::from_buffer(header.dtype, header.shape, buffer)?;
                Ok(Reply {
                    tensor,
                    is_dead,
                    send_start_micros: header.send_start_micros.max(rest.send_start_micros),
                    require_ack: header.require_ack || rest.require_ack,
                })
            }
            ReadState::Whole(len) | ReadState::Header(len) if self.buffered.len() == len => {
                let message = pb::RecvTensorResponse::decode(self.buffered.freeze())
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

fn read_prefix(buffered: &[u8]) -> Result<usize, Status> {
    match *buffered {
        [0, a, b, c, d] => {
            let len = u32::from_be_bytes([a, b, c, d]) as usize;
            if len > MAX_MESSAGE_SIZE { Err(malformed("it is over the size limit")) } else { Ok(len) }
        }
        _ => Err(malformed("it is compressed, which was not asked for")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;
    use prost::encoding::encode_varint;

    #[test]
    fn announced_sizes_are_checked_before_allocation() {
        // A vector of 2^40 floats does not fit into a message of 2^31 - 1 bytes.
        let mut bytes = BytesMut::new();
        bytes.put_u8(0);
        bytes.put_u32(i32::MAX as u32);
        bytes.put_slice(&[0x0a, 0xf0, 0xff, 0xff, 0xff, 0x07, 0x08, 1, 0x12, 8, 0x12, 6, 8]);
        encode_varint(1 << 40, &mut bytes);
        bytes.put_slice(&[0x22, 0xd0, 0xff, 0xff, 0xff, 0x07]);
        let mut reader = ReplyReader::default();
        assert!(reader.push(bytes.freeze()).is_ok());
        assert!(matches!(reader.state, ReadState::Whole(_)));
        assert!(reader.finish().is_err());
    }
}
