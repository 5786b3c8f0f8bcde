//! Header compression (RFC 7541): blocks are decoded with a full dynamic table and encoded with one of two
//! fields.

mod decode;
mod encode;
mod huffman;
mod table;

pub(crate) use decode::Decoder;
pub(crate) use encode::{Encoder, put_field, put_status};

use bytes::Bytes;

/// The content type of gRPC calls; with a message format, the content type has this prefix.
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

    /// Returns the size of the field by RFC 7541's measure (section 4.1), bytes.
    fn size(&self) -> usize {
        self.name.len() + self.value.len() + 32
    }
}
