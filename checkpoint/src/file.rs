//! Files that are written aside and take their name only when they are whole.

use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A file that is being written under another name. Dropped before it is committed, it is removed.
#[derive(Debug)]
pub(crate) struct PendingFile {
    path: PathBuf,
    temporary: PathBuf,
    /// `None` once it is whole.
    file: Option<BufWriter<File>>,
    is_committed: bool,
    len: u64,
}

impl PendingFile {
    pub(crate) fn create(path: impl Into<PathBuf>) -> Result<PendingFile> {
        let path = path.into();
        let mut name = path.clone().into_os_string();
        name.push(format!(".tempstate{}", rand::random::<u64>()));
        let temporary = PathBuf::from(name);
        let file = File::create(&temporary).map_err(|e| Error::file(&temporary, &e))?;
        let file = Some(BufWriter::with_capacity(1 << 20, file));
        Ok(PendingFile { path, temporary, file, is_committed: false, len: 0 })
    }

    /// Bytes written so far.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(bytes).map_err(|e| Error::file(&self.path, &e))?;
            self.len += bytes.len() as u64;
        }
        Ok(())
    }

    /// Makes sure that everything is on the disk.
    pub(crate) fn sync(&mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            let synced = file.into_inner().map_err(|e| e.into_error()).and_then(|file| file.sync_all());
            synced.map_err(|e| Error::file(&self.path, &e))?;
        }
        Ok(())
    }

    /// Gives the file its name, in place of one that has it.
    pub(crate) fn commit(mut self) -> Result<()> {
        self.sync()?;
        fs::rename(&self.temporary, &self.path).map_err(|e| Error::file(&self.path, &e))?;
        self.is_committed = true;
        Ok(())
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        if !self.is_committed {
            self.file = None;
            // What failed before is what is reported.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Makes the names that files have been given in a folder last. Not every file system can.
pub(crate) fn sync_folder_of(path: &Path) {
    if let Ok(folder) = File::open(folder_of(path)) {
        let _ = folder.sync_all();
    }
}

/// Makes the folder of a file, if its own folder is there.
pub(crate) fn create_folder_of(path: &Path) -> Result<()> {
    let folder = folder_of(path);
    match fs::create_dir(folder) {
        Ok(()) => Ok(()),
        // If that is no folder, the file that is to be in it says so.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(Error::file(folder, &e)),
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
