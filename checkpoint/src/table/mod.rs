//! Sorted tables of keys and values in LevelDB's format: blocks of prefix-compressed entries, an index block
//! that locates them, and a footer.

mod block;
mod builder;
mod reader;

pub(crate) use builder::Builder;
pub(crate) use reader::Table;

/// The magic number in the last bytes of a table.
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;

/// Size of the footer in bytes: two padded block handles and the magic number.
const FOOTER: usize = 48;

/// Size of a block's trailer in bytes: the compression type and a checksum.
const TRAILER: usize = 5;

const UNCOMPRESSED: u8 = 0;
const SNAPPY: u8 = 1;

/// The location of a block, without its trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Handle {
    offset: u64,
    size: u64,
}
