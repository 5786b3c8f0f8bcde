//! The store of local disks. A file is written under a temporary name and renamed when it is complete.

mod direct;

use super::{Pending, Readable, Store};
use crate::error::{Error, Result};
use direct::DirectWriter;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The store of the operating system's file systems.
#[derive(Debug)]
pub(super) struct Local;

impl Store for Local {
    fn open(&self, path: &Path) -> Result<Box<dyn Readable>> {
        let file = File::open(path).map_err(|e| Error::file(path, &e))?;
        Ok(Box::new(OpenFile { path: path.to_owned(), file }))
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        fs::read(path).map_err(|e| Error::file(path, &e))
    }

    fn create(&self, path: &Path) -> Result<Box<dyn Pending>> {
        let cached = |path: &Path| Ok(Output::Cached(BufWriter::with_capacity(1 << 20, File::create(path)?)));
        Ok(Box::new(PendingFile::create(path, cached)?))
    }

    fn create_direct(&self, path: &Path) -> Result<Box<dyn Pending>> {
        let direct = |path: &Path| DirectWriter::create(path).map(Output::Direct);
        Ok(Box::new(PendingFile::create(path, direct)?))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(path.exists())
    }

    fn modified(&self, path: &Path) -> Result<SystemTime> {
        fs::metadata(path).and_then(|metadata| metadata.modified()).map_err(|e| Error::file(path, &e))
    }

    fn list(&self, folder: &Path) -> Result<Vec<OsString>> {
        let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let failed = |e: io::Error| Error::file(here, &e);
        match fs::read_dir(here) {
            Ok(entries) => entries.map(|entry| Ok(entry.map_err(failed)?.file_name())).collect(),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Vec::new()),
            Err(e) => Err(failed(e)),
        }
    }

    fn relocate(&self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(from, to).map_err(|e| Error::file(from, &e))
    }

    fn delete(&self, path: &Path) -> Result<()> {
        match fs::remove_file(path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::file(path, &e)),
            _ => Ok(()),
        }
    }

    fn prepare(&self, path: &Path) -> Result<()> {
        let folder = folder_of(path);
        match fs::create_dir(folder) {
            Ok(()) => Ok(()),
            // If the existing path is not a folder, the later creation of a file in it reports the error.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(e) => Err(Error::file(folder, &e)),
        }
    }

    fn create_folders(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).map_err(|e| Error::file(folder, &e))
    }

    fn remove_folder(&self, folder: &Path) -> Result<()> {
        fs::remove_dir(folder).map_err(|e| Error::file(folder, &e))
    }

    fn sync_folder(&self, path: &Path) {
        if let Ok(folder) = File::open(folder_of(path)) {
            let _ = folder.sync_all();
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: File,
}

impl Readable for OpenFile {
    fn size(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|e| Error::file(&self.path, &e))?.len())
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(out, offset).map_err(|e| Error::file(&self.path, &e))
    }
}

/// A file that is being written under a temporary name.
#[derive(Debug)]
struct PendingFile {
    path: PathBuf,
    temporary: PathBuf,
    /// The open file; `None` once it has been synced and closed.
    file: Option<Output>,
    is_committed: bool,
    written: u64,
}

#[derive(Debug)]
enum Output {
    Cached(BufWriter<File>),
    Direct(DirectWriter),
}

impl Output {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Output::Cached(file) => file.write_all(bytes),
            Output::Direct(file) => file.write_all(bytes),
        }
    }

    fn into_inner(self) -> io::Result<File> {
        match self {
            Output::Cached(file) => file.into_inner().map_err(io::IntoInnerError::into_error),
            Output::Direct(file) => file.into_inner(),
        }
    }
}

impl PendingFile {
    fn create(path: &Path, open: impl FnOnce(&Path) -> io::Result<Output>) -> Result<PendingFile> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".tempstate{}", rand::random::<u64>()));
        let temporary = PathBuf::from(name);
        let file = Some(open(&temporary).map_err(|e| Error::file(&temporary, &e))?);
        Ok(PendingFile { path: path.to_owned(), temporary, file, is_committed: false, written: 0 })
    }
}

impl Pending for PendingFile {
    fn written(&self) -> u64 {
        self.written
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(bytes).map_err(|e| Error::file(&self.path, &e))?;
            self.written += bytes.len() as u64;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            let synced = file.into_inner().and_then(|file| file.sync_all());
            synced.map_err(|e| Error::file(&self.path, &e))?;
        }
        Ok(())
    }

    fn commit(mut self: Box<Self>) -> Result<()> {
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
            // A failure to remove the temporary file is ignored, because only the error that prevented the
            // commit is reported.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
