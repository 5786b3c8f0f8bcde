//! A file as a stream of bytes, which are decompressed while they are read.

use super::inflate::Inflater;
use super::snappy::SnappyReader;
use device::{Error, Result};
use graph::Code;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Default number of bytes that are read from a file at once.
const DEFAULT_BUFFER: usize = 256 << 10;

/// The compression of a whole file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    #[default]
    None,
    Zlib,
    /// One or several gzip members, one after the other.
    Gzip,
    /// Blocks that are compressed by Snappy, in files of records.
    Snappy,
}

impl Compression {
    /// Returns the compression that an attribute or an input of an op names.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown name.
    pub fn parse(name: &[u8]) -> Result<Compression> {
        match name {
            b"" => Ok(Compression::None),
            b"ZLIB" => Ok(Compression::Zlib),
            b"GZIP" => Ok(Compression::Gzip),
            other => Err(Error::invalid(format!(
                "Unsupported compression_type: {}",
                String::from_utf8_lossy(other)
            ))),
        }
    }

    /// Returns the compression of a file of records, which is also possible with Snappy.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown name.
    pub fn parse_for_records(name: &[u8]) -> Result<Compression> {
        if name == b"SNAPPY" { Ok(Compression::Snappy) } else { Compression::parse(name) }
    }
}

/// Returns the path that a client's file name, bytes in any encoding, denotes. Like in TensorFlow, a prefix `file://`
/// and the host after it are ignored.
pub fn path_of(bytes: impl AsRef<[u8]>) -> PathBuf {
    let bytes = bytes.as_ref();
    let on_disk =
        bytes.strip_prefix(b"file://").and_then(|rest| Some(&rest[rest.iter().position(|&b| b == b'/')?..]));
    PathBuf::from(OsStr::from_bytes(on_disk.unwrap_or(bytes)))
}

/// A byte stream of a file. Truncated compressed data ends the stream without an error; the readers of records detect
/// missing bytes.
pub struct Source {
    path: PathBuf,
    stream: Stream,
    /// Number of decompressed bytes consumed so far.
    position: u64,
}

enum Stream {
    Plain(BufReader<File>),
    Compressed(Inflater),
    Snappy(SnappyReader),
}

impl Source {
    /// Opens a file with the default buffer size.
    ///
    /// # Errors
    /// `FailedPrecondition` for a folder, and the errors of opening a file.
    pub fn open(path: impl AsRef<Path>, compression: Compression) -> Result<Source> {
        Source::with_buffer(path, compression, DEFAULT_BUFFER)
    }

    /// Opens a file that is read `buffer` bytes at a time; otherwise like [`Source::open`].
    pub fn with_buffer(path: impl AsRef<Path>, compression: Compression, buffer: usize) -> Result<Source> {
        let path = path.as_ref().to_owned();
        let buffer = buffer.clamp(1, 1 << 30);
        let file = File::open(&path).map_err(|e| checkpoint::Error::file(&path, &e))?;
        if file.metadata().is_ok_and(|m| m.is_dir()) {
            let reason = "Is a directory".to_owned();
            let path = path.display().to_string();
            return Err(checkpoint::Error::File { code: Code::FailedPrecondition, path, reason }.into());
        }
        let stream = match compression {
            Compression::None => Stream::Plain(BufReader::with_capacity(buffer, file)),
            Compression::Snappy => Stream::Snappy(SnappyReader::new(file, buffer)),
            compressed => Stream::Compressed(Inflater::new(file, compressed == Compression::Gzip, buffer)),
        };
        Ok(Source { path, stream, position: 0 })
    }

    /// Returns the path with which the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of decompressed bytes consumed so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the buffered bytes. If there are none, reads more of the file first; at the end of the file, returns an
    /// empty slice.
    pub fn peek(&mut self) -> Result<&[u8]> {
        let read = match &mut self.stream {
            Stream::Plain(reader) => reader.fill_buf(),
            Stream::Compressed(reader) => reader.peek(),
            Stream::Snappy(reader) => reader.peek(),
        };
        match read {
            Ok(bytes) => Ok(bytes),
            Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidData) => {
                let what = format!("cannot be decompressed: {e}");
                Err(checkpoint::Error::corrupt(&self.path, what).into())
            }
            Err(e) => Err(checkpoint::Error::file(&self.path, &e).into()),
        }
    }

    /// Marks `count` bytes of [`Source::peek`] as consumed.
    pub fn consume(&mut self, count: usize) {
        match &mut self.stream {
            Stream::Plain(reader) => reader.consume(count),
            Stream::Compressed(reader) => reader.consume(count),
            Stream::Snappy(reader) => reader.consume(count),
        }
        self.position += count as u64;
    }

    /// Reads up to `count` bytes and appends them to `out`. Returns the number of bytes read, which is smaller only at
    /// the end. Memory grows with the bytes read, because `count` may come from a damaged file.
    pub fn read(&mut self, count: u64, out: &mut Vec<u8>) -> Result<u64> {
        let mut left = count;
        while left > 0 {
            let bytes = self.peek()?;
            let len = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            if len == 0 {
                break;
            }
            out.try_reserve(len).map_err(|_| {
                Error::new(Code::ResourceExhausted, format!("no memory for a record of {count} bytes"))
            })?;
            out.extend_from_slice(&bytes[..len]);
            self.consume(len);
            left -= len as u64;
        }
        Ok(count - left)
    }

    /// Skips up to `count` bytes. Returns the number of bytes skipped, which is smaller only at the end.
    pub fn skip(&mut self, count: u64) -> Result<u64> {
        let mut left = count;
        while left > 0 {
            let len = self.peek()?.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            if len == 0 {
                break;
            }
            self.consume(len);
            left -= len as u64;
        }
        Ok(count - left)
    }

    /// Moves forward to `position`, in decompressed bytes; seeks if the file is not compressed.
    ///
    /// # Errors
    /// `OutOfRange` if the stream ends before the position, `InvalidArgument` if the position is behind the current
    /// one.
    pub fn advance_to(&mut self, position: u64) -> Result<()> {
        let Some(ahead) = position.checked_sub(self.position) else {
            device::invalid!("{} is past byte {position}", self.path.display());
        };
        if let Stream::Plain(reader) = &mut self.stream {
            let size =
                reader.get_ref().metadata().map_err(|e| checkpoint::Error::file(&self.path, &e))?.len();
            if position <= size {
                reader
                    .seek(SeekFrom::Start(position))
                    .map_err(|e| checkpoint::Error::file(&self.path, &e))?;
                self.position = position;
                return Ok(());
            }
        }
        if self.skip(ahead)? < ahead {
            let message = format!("{} ends before byte {position}", self.path.display());
            return Err(Error::new(Code::OutOfRange, message));
        }
        Ok(())
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({} at {})", self.path.display(), self.position)
    }
}
