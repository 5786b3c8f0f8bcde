//! A writer of bundles with one data file.

use super::entry::{Entry, HEADER_KEY, Header};
use super::{Content, Sink, data_file, index_file};
use crate::error::{Error, Result, invalid};
use crate::slice::SliceSpec;
use crate::store::{self, Pending, Store};
use crate::table::Builder;
use graph::DType;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A writer of tensors to a new bundle. The files get their names when all tensors are written, and the index
/// is last. If the writer is dropped before that, it deletes its temporary files.
#[derive(Debug)]
pub struct Writer {
    prefix: PathBuf,
    store: Arc<dyn Store>,
    data: Box<dyn Pending>,
    entries: BTreeMap<Vec<u8>, Entry>,
}

impl Writer {
    /// Starts a bundle, and creates the folder of its files if it is missing.
    ///
    /// # Errors
    /// `NotFound` if the parent of the folder does not exist.
    pub fn create(prefix: impl AsRef<Path>) -> Result<Writer> {
        Writer::create_with(prefix, |store, path| store.create(path))
    }

    /// Starts a bundle like [`Writer::create`], but calls `create` to start the data file in the bundle's store.
    pub fn create_with(
        prefix: impl AsRef<Path>,
        create: impl FnOnce(&dyn Store, &Path) -> Result<Box<dyn Pending>>,
    ) -> Result<Writer> {
        let prefix = prefix.as_ref().to_owned();
        let store = store::store_of(&prefix)?;
        store.prepare(&prefix)?;
        let data = create(&*store, &data_file(&prefix, 0, 1))?;
        Ok(Writer { prefix, store, data, entries: BTreeMap::new() })
    }

    /// Adds a whole tensor.
    ///
    /// # Errors
    /// `InvalidArgument` if the bundle has a tensor of this name, `ResourceExhausted` if the disk is full,
    /// `Unimplemented` for types that a checkpoint cannot store.
    pub fn add(&mut self, name: &[u8], tensor: &impl Content) -> Result<()> {
        self.add_under(name.to_owned(), tensor)
    }

    /// Adds a slice of a tensor, or the whole tensor if the slice covers it.
    pub fn add_slice(&mut self, name: &[u8], spec: &SliceSpec, tensor: &impl Content) -> Result<()> {
        if spec.slice.covers(&spec.shape) {
            return self.add(name, tensor);
        }
        if *tensor.shape() != spec.slice_shape()? {
            invalid!("a tensor of shape {} is not slice {} of {}", tensor.shape(), spec.slice, spec.shape);
        }
        let key = spec.slice.key(name);
        if self.entries.contains_key(&key) {
            invalid!("Adding duplicate key: {}", String::from_utf8_lossy(&key));
        }
        if self.entries.get(name).is_some_and(|whole| whole.slices.is_empty()) {
            invalid!("Adding duplicate key: {}", String::from_utf8_lossy(name));
        }
        let whole = self
            .entries
            .entry(name.to_owned())
            .or_insert_with(|| Entry::sliced(tensor.dtype(), spec.shape.clone()));
        if whole.shape != spec.shape || whole.dtype != tensor.dtype() {
            invalid!(
                "slices of {} are of tensors of {} {} and of {} {}",
                String::from_utf8_lossy(name),
                whole.dtype,
                whole.shape,
                tensor.dtype(),
                spec.shape
            );
        }
        whole.slices.push(spec.slice.clone());
        self.add_under(key, tensor)
    }

    fn add_under(&mut self, key: Vec<u8>, tensor: &impl Content) -> Result<()> {
        if key == HEADER_KEY || self.entries.contains_key(&key) {
            invalid!("Adding duplicate key: {}", String::from_utf8_lossy(&key));
        }
        let wanted = tensor.dtype().size().map(|size| (size * tensor.shape().num_elements()) as u64);
        if wanted.is_none() && !matches!(tensor.dtype(), DType::String | DType::Variant) {
            return Err(Error::unimplemented(format!("a tensor of {} in a checkpoint", tensor.dtype())));
        }
        let offset = self.data.written();
        let mut sink = Sink::new(&mut *self.data);
        tensor.write_to(&mut sink)?;
        let (size, checksum) = sink.finish();
        if wanted.is_some_and(|wanted| wanted != size) {
            invalid!("{size} bytes are not a tensor of {} {}", tensor.dtype(), tensor.shape());
        }
        let mut entry = Entry::sliced(tensor.dtype(), tensor.shape().clone());
        (entry.offset, entry.size, entry.checksum) = (offset, size, checksum);
        self.entries.insert(key, entry);
        Ok(())
    }

    /// Commits the data file and then the index.
    pub fn finish(self) -> Result<()> {
        let mut data = self.data;
        data.sync()?;
        let index = write_index(&*self.store, &self.prefix, 1, &self.entries)?;
        data.commit()?;
        index.commit()?;
        self.store.sync_folder(&self.prefix);
        Ok(())
    }
}

/// Writes an index file without committing it.
pub(super) fn write_index(
    store: &dyn Store,
    prefix: &Path,
    shards: u32,
    entries: &BTreeMap<Vec<u8>, Entry>,
) -> Result<Box<dyn Pending>> {
    let mut table = Builder::new(store.create(&index_file(prefix))?);
    table.add(HEADER_KEY, &Header::encode(shards))?;
    for (key, entry) in entries {
        table.add(key, &entry.encode())?;
    }
    let mut file = table.finish()?;
    file.sync()?;
    Ok(file)
}
