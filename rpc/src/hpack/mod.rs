//! Header compression (RFC 7541): header blocks are decoded with a full dynamic table, and encoded with a
//! dynamic table of at most two fields.

mod decode;
mod encode;
mod huffman;
mod table;

pub(crate) use decode::Decoder;
pub(crate) use encode::{Encoder, put_field, put_status};

use bytes::Bytes;

/// The content type of gRPC calls, or its prefix if it also names the message format.
pub(crate) const GRPC: &[u8] = b"application/grpc";

/// A header field. Clones share its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: Bytes,
    pub(crate) value: Bytes,
}

impl Field {
    const fn from_static(name: &'static str, value: &'static str) -> Field {
        Field { name: Bytes::from_static(name.as_bytes()), value: Bytes::from_static(value.as_bytes()) }
    }

    /// Returns the size of the field as RFC 7541, section 4.1, measures it, bytes.
    fn size(&self) -> usize {
        self.name.len() + self.value.len() + 32
    }
}
