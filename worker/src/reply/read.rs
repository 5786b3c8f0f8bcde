//! The decoder of RecvTensor replies, for bodies that arrive in chunks.

use super::head::{Head, Scan};
use super::{MAX_HEADER, Reply, malformed};
use bytes::{Bytes, BytesMut};
use graph::{Buffer, Tensor};
use prost::Message;
use proto::grpc::{MAX_MESSAGE_SIZE, PREFIX};
use proto::{Status, pb};

/// Decodes a reply from chunks. A tensor's elements are copied from the chunks into the tensor's buffer.
#[derive(Debug, Default)]
pub(crate) struct ReplyReader {
    /// The bytes of the prefix and the header, of the whole message, or of the fields behind the elements.
    held: BytesMut,
    state: State,
}

/// The part of the reply that the next bytes belong to.
#[derive(Debug, Default)]
enum State {
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
    head: Head,
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

    /// Allocates the tensor and copies the elements that are already there.
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

    /// Returns the reply after the body has ended.
    ///
    /// # Errors
    /// `Internal` if the body ended early.
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

fn read_prefix(held: &[u8]) -> Result<usize, Status> {
    match *held {
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
    fn a_stated_size_takes_no_memory_before_it_is_believed() {
        // A vector of 2^40 floats does not fit into a message of 2^31 - 1 bytes.
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
