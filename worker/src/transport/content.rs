//! Reads frames together with their content: the payload or the descriptor that follows a frame.

use super::frame::{Frame, Malformed, TensorSpec};
use super::reader::Reader;
use bytes::Bytes;
use graph::{Buffer, Tensor};
use std::fs::File;
use std::io;

/// The payload or descriptor that follows a frame on a connection.
pub(super) enum Content {
    Nothing,
    Elements(Buffer),
    /// The error for a tensor whose elements were skipped, because there was no memory for them.
    TooLarge(graph::Error),
    Message(Bytes),
    /// The descriptor of a shared block, open as a file.
    Memory(File),
}

impl Content {
    /// Reads the next frame with its content; `None` at the end of the connection.
    pub(super) async fn next(reader: &mut Reader) -> io::Result<Option<(Frame, Content)>> {
        let Some((frame, payload)) = reader.frame().await? else { return Ok(None) };
        let content = Content::of(&frame, payload, reader).await?;
        Ok(Some((frame, content)))
    }

    /// Reads the content of a frame.
    async fn of(frame: &Frame, payload: usize, reader: &mut Reader) -> io::Result<Content> {
        Ok(match frame {
            Frame::Elements(_, spec) if spec.len() != Some(payload) => {
                return Err(Malformed("tensor: its length is not its shape's").into());
            }
            Frame::Elements(..) => match Buffer::unspecified(payload) {
                Ok(buffer) => Content::Elements(reader.fill(buffer).await?),
                Err(error) => {
                    reader.skip(payload).await?;
                    Content::TooLarge(error)
                }
            },
            Frame::Message(_) | Frame::Run { .. } | Frame::Ran { .. } => {
                Content::Message(reader.message(payload).await?)
            }
            Frame::Block { .. } => Content::Memory(reader.descriptor()?),
            _ => Content::Nothing,
        })
    }
}

/// Returns the tensor with the dtype and shape of `spec` and the elements in `buffer`.
pub(super) fn tensor(spec: TensorSpec, buffer: Buffer) -> io::Result<Tensor> {
    Ok(Tensor::from_buffer(spec.dtype, spec.shape, buffer).map_err(|_| Malformed("tensor"))?)
}
