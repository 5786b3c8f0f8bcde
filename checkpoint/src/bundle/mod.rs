//! Bundles (checkpoint format V2): an index, a table from names to entries, and data files of plain bytes.

mod content;
mod entry;
mod merge;
mod reader;
mod writer;

pub use content::{Content, Sink};
pub use merge::{MergeOptions, merge};
pub(crate) use reader::Part;
pub use reader::Reader;
pub use writer::Writer;

use std::path::{Path, PathBuf};

/// The index of the bundle with this prefix: whether a checkpoint is there is whether this file is.
pub fn index_file(prefix: impl AsRef<Path>) -> PathBuf {
    with_suffix(prefix, ".index")
}

/// One of the data files.
pub fn data_file(prefix: impl AsRef<Path>, shard: u32, shards: u32) -> PathBuf {
    with_suffix(prefix, &format!(".data-{shard:05}-of-{shards:05}"))
}

fn with_suffix(prefix: impl AsRef<Path>, suffix: &str) -> PathBuf {
    let mut path = prefix.as_ref().as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

#[cfg(test)]
mod tests;
