//! Datasets in files, in TensorFlow's format. A folder has a file of metadata and a folder for each run that wrote the
//! dataset; a run has a folder for each shard, and a shard files of records, each a component of an element.

mod block_file;
mod block_snapshot;
mod metadata;
mod reader;
mod snapshot;
mod writer;

pub(crate) use block_snapshot::{BlockSnapshot, BlockSnapshotMode, block_snapshot};
pub(crate) use reader::{chunk_names, load, stored_chunk, stored_shard};
pub(crate) use snapshot::{Snapshot, snapshot};
pub(crate) use writer::{Save, saved};

use crate::objects::io::Compression;
use checkpoint::store;
use device::{Error, Result};
use std::path::{Path, PathBuf};

/// The name of the file of metadata.
const METADATA: &str = "snapshot.metadata";

/// Returns the compression of the files that the attribute `compression` of an op names.
///
/// # Errors
/// `InvalidArgument` for an unknown name.
pub(crate) fn compression_of(name: &str) -> Result<Compression> {
    match name {
        "NONE" => Ok(Compression::None),
        name => Compression::parse_for_records(name.as_bytes()),
    }
}

/// Returns the path with a prefix before it, joined by one slash.
fn prefixed(prefix: &str, path: &str) -> String {
    match prefix {
        "" => path.to_owned(),
        prefix => format!("{}/{}", prefix.trim_end_matches('/'), path.trim_start_matches('/')),
    }
}

/// Checks that a folder is not in a remote store.
///
/// # Errors
/// `Unimplemented` if it is.
fn check_local(folder: &Path) -> Result<()> {
    if !store::is_local(folder) {
        return Err(Error::unimplemented(format!(
            "a stored dataset in the remote store of {}; a local folder is supported",
            folder.display()
        )));
    }
    Ok(())
}

/// Returns the folder of a shard of a run. The number is unsigned like in TensorFlow.
fn shard_folder(run: &Path, shard: i64) -> PathBuf {
    run.join(format!("{:08}.shard", shard as u64))
}

/// Returns the file of a shard with number `chunk`.
fn chunk_file(shard: &Path, chunk: u64) -> PathBuf {
    shard.join(format!("{chunk:08}.snapshot"))
}

/// Returns the number of the file of a shard with this name; `None` for other files.
fn chunk_number(name: &str) -> Option<u64> {
    name.strip_suffix(".snapshot")?.parse().ok()
}
