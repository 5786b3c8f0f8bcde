//! A file to which bytes are appended, compressed while they are written.

use super::snappy::SnappyWriter;
use super::source::Compression;
use device::Result;
use flate2::write::{GzEncoder, ZlibEncoder};
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file that is being written.
pub(super) struct Sink {
    path: PathBuf,
    stream: Stream,
}

enum Stream {
    Plain(BufWriter<File>),
    Zlib(ZlibEncoder<BufWriter<File>>),
    Gzip(GzEncoder<BufWriter<File>>),
    Snappy(SnappyWriter),
}

impl Sink {
    /// Creates the file; an existing file is replaced.
    pub(super) fn create(path: impl AsRef<Path>, compression: Compression) -> Result<Sink> {
        let path = path.as_ref().to_owned();
        let file = BufWriter::new(File::create(&path).map_err(|e| checkpoint::Error::file(&path, &e))?);
        let stream = match compression {
            Compression::None => Stream::Plain(file),
            Compression::Zlib => Stream::Zlib(ZlibEncoder::new(file, flate2::Compression::default())),
            Compression::Gzip => Stream::Gzip(GzEncoder::new(file, flate2::Compression::default())),
            Compression::Snappy => Stream::Snappy(SnappyWriter::new(file)),
        };
        Ok(Sink { path, stream })
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = match &mut self.stream {
            Stream::Plain(file) => file.write_all(bytes),
            Stream::Zlib(file) => file.write_all(bytes),
            Stream::Gzip(file) => file.write_all(bytes),
            Stream::Snappy(file) => file.write_all(bytes),
        };
        self.done(written)
    }

    /// Makes the written bytes visible to readers of the file.
    pub(super) fn flush(&mut self) -> Result<()> {
        let flushed = match &mut self.stream {
            Stream::Plain(file) => file.flush(),
            Stream::Zlib(file) => file.flush(),
            Stream::Gzip(file) => file.flush(),
            Stream::Snappy(file) => file.flush(),
        };
        self.done(flushed)
    }

    /// Writes the remaining bytes and closes the file. Dropping the sink does the same, but ignores errors.
    pub(super) fn finish(mut self) -> Result<()> {
        self.complete()
    }

    /// Writes the remaining bytes, and returns once the file outlasts a loss of power.
    pub(super) fn finish_stored(mut self) -> Result<()> {
        self.complete()?;
        self.done(self.file().sync_all())
    }

    fn complete(&mut self) -> Result<()> {
        let completed = match &mut self.stream {
            Stream::Plain(file) => file.flush(),
            Stream::Zlib(file) => file.try_finish().and_then(|()| file.get_mut().flush()),
            Stream::Gzip(file) => file.try_finish().and_then(|()| file.get_mut().flush()),
            Stream::Snappy(file) => file.flush(),
        };
        self.done(completed)
    }

    fn file(&self) -> &File {
        match &self.stream {
            Stream::Plain(file) => file.get_ref(),
            Stream::Zlib(file) => file.get_ref().get_ref(),
            Stream::Gzip(file) => file.get_ref().get_ref(),
            Stream::Snappy(file) => file.file(),
        }
    }

    fn done(&self, result: io::Result<()>) -> Result<()> {
        Ok(result.map_err(|e| checkpoint::Error::file(&self.path, &e))?)
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sink({})", self.path.display())
    }
}
