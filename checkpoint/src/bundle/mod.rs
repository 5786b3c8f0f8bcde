//! Bundles (checkpoint format V2): an index file, which is a table from names to entries, and data files of
//! plain bytes.

mod content;
mod entry;
mod merge;
mod reader;
mod variant;
mod writer;

pub use content::{Content, Sink};
pub use merge::{MergeOptions, merge};
pub use reader::Reader;
pub(crate) use reader::SliceAssembler;
pub use writer::Writer;

use std::path::{Path, PathBuf};

/// Returns the path of the index file. A checkpoint exists if and only if its index file exists.
pub fn index_file(prefix: impl AsRef<Path>) -> PathBuf {
    with_suffix(prefix, ".index")
}

/// Returns the path of one of the data files.
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
