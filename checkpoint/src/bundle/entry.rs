//! The entries of a bundle's index: a tensor (`BundleEntryProto`) and the header (`BundleHeaderProto`).

use crate::proto::{Field, Fields, Malformed, Writer};
use crate::slice::{TensorSlice, read_shape, slice_field, write_shape};
use graph::{DType, Shape};

/// The key of the header, which sorts before every name.
pub(super) const HEADER_KEY: &[u8] = b"";

/// The format version of the bundles that are written.
const PRODUCER: u64 = 1;

/// The index entry of a tensor or of a slice: its type, shape and location.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) shard: u32,
    pub(super) offset: u64,
    pub(super) size: u64,
    /// Masked checksum of the bytes.
    pub(super) checksum: u32,
    /// The slices of a tensor that is stored in slices, each under its own key. Such an entry has no bytes
    /// itself.
    pub(super) slices: Vec<TensorSlice>,
}

impl Entry {
    /// Creates the entry of a tensor that is stored in slices.
    pub(super) fn sliced(dtype: DType, shape: Shape) -> Entry {
        Entry { dtype, shape, shard: 0, offset: 0, size: 0, checksum: 0, slices: Vec::new() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.int(1, self.dtype.number().into());
        w.message(2, |shape| write_shape(shape, &self.shape));
        w.int(3, self.shard.into()).int(4, self.offset as i64).int(5, self.size as i64);
        if self.checksum != 0 {
            w.fixed32(6, self.checksum);
        }
        for slice in &self.slices {
            w.message(7, |proto| slice.write(proto));
        }
        w.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Entry, Malformed> {
        let mut entry = Entry::sliced(DType::Float, Shape::scalar());
        let mut dtype = 0;
        for field in Fields::of(bytes) {
            match field? {
                (1, value) => dtype = value.int()?,
                (2, value) => entry.shape = read_shape(value.fields()?)?,
                (3, value) => entry.shard = u32::try_from(value.int()?).map_err(|_| Malformed)?,
                (4, value) => entry.offset = u64::try_from(value.int()?).map_err(|_| Malformed)?,
                (5, value) => entry.size = u64::try_from(value.int()?).map_err(|_| Malformed)?,
                (6, Field::Fixed32(checksum)) => entry.checksum = checksum,
                (7, value) => entry.slices.push(slice_field(value)?),
                _ => {}
            }
        }
        entry.dtype = i32::try_from(dtype).ok().and_then(DType::from_number).ok_or(Malformed)?;
        Ok(entry)
    }
}

/// The header of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) shards: u32,
    pub(super) is_big_endian: bool,
    /// The lowest reader version that can read the bundle.
    pub(super) min_consumer: i64,
}

impl Header {
    pub(super) fn encode(shards: u32) -> Vec<u8> {
        let mut w = Writer::new();
        w.int(1, shards.into()).message(3, |version| {
            version.varint(1, PRODUCER);
        });
        w.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Header, Malformed> {
        let mut header = Header { shards: 0, is_big_endian: false, min_consumer: 0 };
        for field in Fields::of(bytes) {
            match field? {
                (1, value) => header.shards = u32::try_from(value.int()?).map_err(|_| Malformed)?,
                (2, value) => header.is_big_endian = value.int()? != 0,
                (3, value) => {
                    for field in value.fields()? {
                        if let (2, value) = field? {
                            header.min_consumer = value.int()?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(header)
    }

    /// Returns whether this code can read the format version.
    pub(super) fn is_readable(&self) -> bool {
        self.min_consumer <= PRODUCER as i64
    }
}
