//! The stores that hold checkpoint files. A file name's scheme selects the store: `s3://bucket/key` is in an
//! object store, and a name without a scheme is a path on a local disk.

mod chunk;
mod local;
#[cfg(feature = "store-memory")]
mod remote;

use crate::error::{Error, Result};
use graph::Code;
use std::ffi::OsString;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

pub use chunk::Chunk;

/// A store of files, addressed by whole names with the scheme. Every call ends: if the store does not
/// respond, the call returns an error that names the file and the store.
pub trait Store: Debug + Send + Sync {
    /// Opens a file.
    ///
    /// # Errors
    /// `NotFound` if the file does not exist.
    fn open(&self, path: &Path) -> Result<Box<dyn Readable>>;

    /// Reads a whole file.
    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        let mut file = self.open(path)?;
        let mut bytes = Vec::new();
        let size = usize::try_from(file.size()?).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(size).map_err(|_| Error::File {
            code: Code::ResourceExhausted,
            path: path.display().to_string(),
            reason: format!("its {size} bytes do not fit into memory"),
        })?;
        bytes.resize(size, 0);
        file.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Starts a file. The file gets its name, and replaces an existing file of that name, only when it is
    /// committed.
    fn create(&self, path: &Path) -> Result<Box<dyn Pending>>;

    /// Starts a file like [`Store::create`], for contents that will not be read soon. The bytes bypass the page cache,
    /// to leave processor time and caches to other threads.
    fn create_direct(&self, path: &Path) -> Result<Box<dyn Pending>> {
        self.create(path)
    }

    /// Returns whether a file exists.
    fn exists(&self, path: &Path) -> Result<bool>;

    /// Returns the time of the last modification of a file.
    fn modified(&self, path: &Path) -> Result<SystemTime>;

    /// Lists the names, without their folder, of the files and folders in a folder, in no particular order. A
    /// missing folder counts as empty.
    fn list(&self, folder: &Path) -> Result<Vec<OsString>>;

    /// Renames a file within the store, and replaces an existing file of the new name. A store that cannot
    /// rename copies the file, which then keeps its old name too until it is deleted.
    fn relocate(&self, from: &Path, to: &Path) -> Result<()>;

    /// Deletes a file if it exists.
    fn delete(&self, path: &Path) -> Result<()>;

    /// Creates the folder of a file, if the store needs folders. The parent of the folder must exist.
    fn prepare(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    /// Creates a folder and its missing parents, if the store needs folders.
    fn create_folders(&self, _folder: &Path) -> Result<()> {
        Ok(())
    }

    /// Removes an empty folder.
    fn remove_folder(&self, _folder: &Path) -> Result<()> {
        Ok(())
    }

    /// Makes the names of files in the folder of `path` durable. Some stores cannot do this or do not need
    /// to.
    fn sync_folder(&self, _path: &Path) {}
}

/// An existing file that is open for reading.
pub trait Readable: Debug + Send {
    /// Returns the number of bytes in the file.
    fn size(&self) -> Result<u64>;

    /// Fills `out` with the bytes at `offset`.
    ///
    /// # Errors
    /// `DataLoss` if the file ends before.
    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()>;
}

/// A file that is being written. If it is dropped before it is committed, it is deleted.
pub trait Pending: Debug + Send {
    /// Returns the number of bytes written so far.
    fn written(&self) -> u64;

    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Writes bytes from `read`, which fills the start of the buffer passed to it and returns the number of
    /// bytes, until it returns 0.
    fn write_from(&mut self, read: &mut dyn FnMut(&mut [u8]) -> Result<usize>) -> Result<()> {
        let mut chunk = Chunk::default();
        loop {
            let count = read(chunk.space())?;
            chunk.advance(count);
            if count == 0 || chunk.is_full() {
                self.write(chunk.filled())?;
                chunk.clear();
            }
            if count == 0 {
                return Ok(());
            }
        }
    }

    /// Waits until all bytes are in the store; no bytes may be written afterwards.
    fn sync(&mut self) -> Result<()>;

    /// Completes the file like [`Pending::sync`], and gives it its name.
    fn commit(self: Box<Self>) -> Result<()>;
}

/// The schemes of all stores, each with the Cargo feature that adds the store to a build.
const SCHEMES: &[(&str, &str)] = &[
    ("memory", "store-memory"),
    ("s3", "store-s3"),
    ("s3a", "store-s3"),
    ("gs", "store-gcs"),
    ("az", "store-azure"),
    ("abfs", "store-azure"),
    ("abfss", "store-azure"),
    ("http", "store-http"),
    ("https", "store-http"),
    ("hdfs", "store-hdfs"),
];

/// Returns the store that holds the file or folder of this name.
///
/// # Errors
/// `Unimplemented` for a scheme that is unknown or not built in, `InvalidArgument` if the store cannot be set
/// up from the environment variables.
pub fn store_of(path: impl AsRef<Path>) -> Result<Arc<dyn Store>> {
    let path = path.as_ref();
    let Some(scheme) = scheme(path) else { return Ok(Arc::new(local::Local)) };
    #[cfg(feature = "store-memory")]
    if let Some(store) = remote::of(path)? {
        return Ok(store);
    }
    let mut message = format!("File system scheme '{scheme}' not implemented (file: '{}')", path.display());
    if let Some((_, feature)) = SCHEMES.iter().find(|(known, _)| *known == scheme) {
        message += &format!("; it is there in builds with the feature {feature}");
    }
    Err(Error::unimplemented(message))
}

/// Reads a whole file.
///
/// # Errors
/// `NotFound` if the file does not exist.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    store_of(&path)?.read(path.as_ref())
}

/// Returns whether a file exists.
pub fn exists(path: impl AsRef<Path>) -> Result<bool> {
    store_of(&path)?.exists(path.as_ref())
}

/// Writes a file atomically: a reader gets the old contents or the new ones, never a part.
pub fn write(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let path = path.as_ref();
    let mut file = store_of(path)?.create(path)?;
    file.write(bytes)?;
    file.commit()
}

/// Returns whether a name is a path on a local disk.
pub fn is_local(path: &Path) -> bool {
    scheme(path).is_none()
}

/// Returns a name that stays valid if the process changes its working directory.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    match scheme(path) {
        Some(_) => Ok(path.to_owned()),
        None => std::path::absolute(path).map_err(|e| Error::file(path, &e)),
    }
}

/// Returns the path of the file `name` in a folder, or `name` itself if it has a scheme.
pub fn within(folder: &Path, name: &str) -> PathBuf {
    if scheme(Path::new(name)).is_some() { name.into() } else { folder.join(name) }
}

/// Moves a file to another name, possibly in another store. The old file may still exist afterwards.
pub(crate) fn relocate(from: &Path, to: &Path) -> Result<()> {
    match () {
        () if from == to => Ok(()),
        () if root(from) == root(to) => store_of(from)?.relocate(from, to),
        () => copy_through(from, to),
    }
}

/// The number of bytes that are read and written at a time when a file is copied.
const COPY_CHUNK: usize = 32 << 20;

/// Copies a file to another name by reading and writing it.
fn copy_through(from: &Path, to: &Path) -> Result<()> {
    let mut source = store_of(from)?.open(from)?;
    let size = source.size()?;
    let mut file = store_of(to)?.create(to)?;
    let mut bytes = vec![0; COPY_CHUNK.min(usize::try_from(size).unwrap_or(COPY_CHUNK))];
    while file.written() < size {
        let rest = usize::try_from(size - file.written()).unwrap_or(COPY_CHUNK).min(bytes.len());
        source.read_at(file.written(), &mut bytes[..rest])?;
        file.write(&bytes[..rest])?;
    }
    file.commit()
}

/// Returns the scheme of a name: a letter, then letters, digits and dots, before `://`.
fn scheme(path: &Path) -> Option<&str> {
    let (scheme, _) = path.to_str()?.split_once("://")?;
    let is_named = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.');
    is_named.then_some(scheme)
}

/// Returns the part of a name before the path, if the name has a scheme: `s3://bucket`.
pub(crate) fn root(path: &Path) -> Option<&str> {
    let start = scheme(path)?.len() + "://".len();
    let name = path.to_str()?;
    let authority = name[start..].find('/').unwrap_or(name.len() - start);
    Some(&name[..start + authority])
}

#[cfg(test)]
mod tests;
