//! Header blocks (RFC 7541): read with a table of what came before, written without one.

mod decode;
mod encode;
mod huffman;
mod table;

pub(crate) use decode::Decoder;
pub(crate) use encode::{Encoder, put_field, put_status};

use bytes::Bytes;

/// The content type of all calls, and what it begins with where messages have a format.
pub(crate) const GRPC: &[u8] = b"application/grpc";

/// A line of a header. Copies share their bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: Bytes,
    pub(crate) value: Bytes,
}

impl Field {
    const fn known(name: &'static str, value: &'static str) -> Field {
        Field { name: Bytes::from_static(name.as_bytes()), value: Bytes::from_static(value.as_bytes()) }
    }

    /// Its size by the standard's measure.
    fn size(&self) -> usize {
        self.name.len() + self.value.len() + 32
    }
}
