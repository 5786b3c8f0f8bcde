//! Sorted tables of keys and values, as LevelDB lays them out: blocks of entries that share prefixes, an index
//! block that leads to them, and a footer.

mod block;
mod builder;
mod reader;

pub(crate) use builder::Builder;
pub(crate) use reader::Table;

/// The last bytes of a table.
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;

/// Two block handles, padded, and the magic number.
const FOOTER: usize = 48;

/// Behind each block: how it is compressed, and a checksum.
const TRAILER: usize = 5;

const UNCOMPRESSED: u8 = 0;
const SNAPPY: u8 = 1;

/// Where a block is, without its trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Handle {
    offset: u64,
    size: u64,
}
