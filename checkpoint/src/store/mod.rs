//! Where files of checkpoints are. A name's scheme says it: `s3://bucket/key` is in an object store; a name without a
//! scheme is a path on this machine's disks.

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

/// A place that holds files by their names. Names are whole ones, with scheme. Every call ends: what does not answer
/// is an error that names file and store.
pub trait Store: Debug + Send + Sync {
    /// # Errors
    /// `NotFound` if there is no such file.
    fn open(&self, path: &Path) -> Result<Box<dyn Readable>>;

    /// All of a file.
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

    /// Begins a file. It has its name, in place of one that had it, when it is committed, and not before.
    fn create(&self, path: &Path) -> Result<Box<dyn Pending>>;

    /// As [`Store::create`], of a file that nobody reads soon, written while others need the processor and its caches.
    fn create_direct(&self, path: &Path) -> Result<Box<dyn Pending>> {
        self.create(path)
    }

    /// Whether a file is there.
    fn exists(&self, path: &Path) -> Result<bool>;

    /// When a file was written last.
    fn modified(&self, path: &Path) -> Result<SystemTime>;

    /// The names, each without its folder, of what is in a folder: files and folders, in no order. A folder that is not
    /// there holds none.
    fn list(&self, folder: &Path) -> Result<Vec<OsString>>;

    /// Gives a file another name of this store, in place of a file that has it. A store that cannot copies, and the
    /// file has its old name too until that is deleted.
    fn relocate(&self, from: &Path, to: &Path) -> Result<()>;

    /// Deletes a file, if it is there.
    fn delete(&self, path: &Path) -> Result<()>;

    /// Makes the folder of a file, where files need one; that folder's own must be there.
    fn prepare(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    /// Makes a folder and those that it is in, where files need one.
    fn create_folders(&self, _folder: &Path) -> Result<()> {
        Ok(())
    }

    /// Removes a folder that nothing is in.
    fn remove_folder(&self, _folder: &Path) -> Result<()> {
        Ok(())
    }

    /// Makes the names that files have been given in the folder of this one last. Not every store can, nor has to.
    fn settle(&self, _path: &Path) {}
}

/// A file that is there.
pub trait Readable: Debug + Send {
    /// Bytes in the file.
    fn size(&self) -> Result<u64>;

    /// Fills `out` with what is at `offset`.
    ///
    /// # Errors
    /// `DataLoss` if the file ends before.
    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()>;
}

/// A file that is being written. Dropped before it is committed, it leaves nothing behind.
pub trait Pending: Debug + Send {
    /// Bytes written so far.
    fn written(&self) -> u64;

    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Writes what `read` puts at the start of places that it is given and says to have put there, until that is
    /// nothing.
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

    /// Makes sure that all bytes are in the store; nothing is written after it.
    fn sync(&mut self) -> Result<()>;

    /// Gives the file its name.
    fn commit(self: Box<Self>) -> Result<()>;
}

/// Schemes of the stores that there are, and the feature that each is built with.
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

/// The store that holds the file or folder of this name.
///
/// # Errors
/// `Unimplemented` for a scheme that is not known or not built in, `InvalidArgument` if the store cannot be set up from
/// what the environment says.
pub fn of(path: impl AsRef<Path>) -> Result<Arc<dyn Store>> {
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

/// All of a file.
///
/// # Errors
/// `NotFound` if there is none.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    of(&path)?.read(path.as_ref())
}

/// Whether a file is there.
pub fn exists(path: impl AsRef<Path>) -> Result<bool> {
    of(&path)?.exists(path.as_ref())
}

/// Writes a file, at once: it is the old one or the new one, never a part.
pub fn write(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let path = path.as_ref();
    let mut file = of(path)?.create(path)?;
    file.write(bytes)?;
    file.commit()
}

/// Whether a name is a path on this machine's disks.
pub fn is_local(path: &Path) -> bool {
    scheme(path).is_none()
}

/// A name that stays right when the process goes to another folder.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    match scheme(path) {
        Some(_) => Ok(path.to_owned()),
        None => std::path::absolute(path).map_err(|e| Error::file(path, &e)),
    }
}

/// A name that is meant within a folder, unless it says where it is itself.
pub fn within(folder: &Path, name: &str) -> PathBuf {
    if scheme(Path::new(name)).is_some() { name.into() } else { folder.join(name) }
}

/// Gives a file another name, wherever that is; the old one may be there after it too.
pub(crate) fn relocate(from: &Path, to: &Path) -> Result<()> {
    match () {
        () if from == to => Ok(()),
        () if root(from) == root(to) => of(from)?.relocate(from, to),
        () => copy_through(from, to),
    }
}

/// Bytes that are copied at a time.
const COPIED: usize = 32 << 20;

/// Reads a file and writes it under another name.
fn copy_through(from: &Path, to: &Path) -> Result<()> {
    let mut source = of(from)?.open(from)?;
    let size = source.size()?;
    let mut file = of(to)?.create(to)?;
    let mut bytes = vec![0; COPIED.min(usize::try_from(size).unwrap_or(COPIED))];
    while file.written() < size {
        let rest = usize::try_from(size - file.written()).unwrap_or(COPIED).min(bytes.len());
        source.read_at(file.written(), &mut bytes[..rest])?;
        file.write(&bytes[..rest])?;
    }
    file.commit()
}

/// The scheme of a name: a letter, then letters, digits and dots, before `://`.
fn scheme(path: &Path) -> Option<&str> {
    let (scheme, _) = path.to_str()?.split_once("://")?;
    let is_named = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.');
    is_named.then_some(scheme)
}

/// What comes before the path in a name with a scheme: `s3://bucket`.
pub(crate) fn root(path: &Path) -> Option<&str> {
    let start = scheme(path)?.len() + "://".len();
    let name = path.to_str()?;
    let authority = name[start..].find('/').unwrap_or(name.len() - start);
    Some(&name[..start + authority])
}

#[cfg(test)]
mod tests;
