//! Merges bundles of several tasks into one: the data files are renamed, and a new index refers to all of
//! them.

use super::entry::Entry;
use super::reader::{Reader, is_slice_key};
use super::writer::write_index;
use super::{data_file, index_file};
use crate::error::{Error, Result, invalid};
use crate::store;
use graph::Code;
use std::collections::BTreeMap;
use std::collections::btree_map;
use std::path::{Path, PathBuf};

/// Options of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeOptions {
    /// True if the folders of the merged bundles are removed once they are empty.
    pub delete_old_dirs: bool,
    /// True if missing bundles are skipped.
    pub allow_missing_files: bool,
}

/// Merges the bundles with these prefixes, in this order, and deletes their files.
///
/// # Errors
/// `InvalidArgument` if a bundle is missing or two bundles contain a tensor of the same name; in these cases, no file
/// is changed.
pub fn merge(parts: &[PathBuf], destination: impl AsRef<Path>, options: MergeOptions) -> Result<()> {
    let destination = destination.as_ref();
    let mut entries = BTreeMap::new();
    let mut sources = Vec::new();
    let mut found = Vec::new();
    for prefix in parts {
        let reader = match Reader::open(prefix) {
            Ok(reader) => reader,
            Err(error) if error.code() == Code::NotFound && options.allow_missing_files => continue,
            Err(error) if error.code() == Code::NotFound => invalid!(
                "allow_missing_files was set to false and {0} did not exist.NOT_FOUND: {0} not found",
                prefix.display()
            ),
            Err(error) => return Err(error),
        };
        let first = u32::try_from(sources.len()).unwrap_or(u32::MAX);
        sources.extend((0..reader.shards).map(|shard| data_file(prefix, shard, reader.shards)));
        for (key, entry) in reader.entries {
            add(&mut entries, key, entry, first, prefix)?;
        }
        found.push(prefix);
    }
    if found.is_empty() {
        invalid!("At least one prefix checkpoint file must exist, but none existed.");
    }
    let shards = u32::try_from(sources.len()).map_err(|_| Error::invalid("too many data files"))?;
    let store = store::store_of(destination)?;
    store.prepare(destination)?;
    let index = write_index(&*store, destination, shards, &entries)?;
    for (shard, from) in sources.iter().enumerate() {
        let to = data_file(destination, shard as u32, shards);
        store::relocate(from, &to)?;
    }
    index.commit()?;
    store.sync_folder(destination);
    // The checkpoint is complete at this point, so files that cannot be deleted do no harm.
    let into: Vec<PathBuf> = (0..shards).map(|shard| data_file(destination, shard, shards)).collect();
    let indexes = found.iter().map(index_file).filter(|index| *index != index_file(destination));
    for left in indexes.chain(sources.into_iter().filter(|from| !into.contains(from))) {
        let _ = store::store_of(&left).and_then(|store| store.delete(&left));
    }
    if options.delete_old_dirs {
        for prefix in &found {
            if prefix.parent() != destination.parent()
                && let Some(folder) = prefix.parent()
            {
                let _ = store::store_of(folder).and_then(|store| store.remove_folder(folder));
            }
        }
    }
    Ok(())
}

/// Adds an index entry of the bundle `prefix`, whose data files have numbers from `first_shard` on in the merged
/// bundle.
fn add(
    all: &mut BTreeMap<Vec<u8>, Entry>,
    key: Vec<u8>,
    mut entry: Entry,
    first_shard: u32,
    prefix: &Path,
) -> Result<()> {
    if entry.slices.is_empty() {
        entry.shard =
            entry.shard.checked_add(first_shard).ok_or_else(|| Error::invalid("too many data files"))?;
    }
    match all.entry(key) {
        btree_map::Entry::Vacant(vacant) => {
            vacant.insert(entry);
        }
        btree_map::Entry::Occupied(mut known) => {
            let is_sliced = !known.get().slices.is_empty() && !entry.slices.is_empty();
            if !is_sliced || is_slice_key(known.key()) {
                invalid!(
                    "Duplicate tensor keyed by {} encountered, when merging prefix: {}",
                    String::from_utf8_lossy(known.key()),
                    prefix.display()
                );
            }
            if known.get().dtype != entry.dtype || known.get().shape != entry.shape {
                invalid!(
                    "Trying to merge slices of {} that are of tensors of {} {} and of {} {}",
                    String::from_utf8_lossy(known.key()),
                    known.get().dtype,
                    known.get().shape,
                    entry.dtype,
                    entry.shape
                );
            }
            known.get_mut().slices.append(&mut entry.slices);
        }
    }
    Ok(())
}
