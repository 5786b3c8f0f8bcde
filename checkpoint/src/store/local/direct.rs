//! Files that are written past the page cache: the disk takes the bytes from our memory, which leaves the processor and
//! the cache to others.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What the places of such writes, in memory and in the file, are multiples of: no disk wants more.
const BLOCK: usize = 4096;

/// Bytes that are written at once.
const CHUNK: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct DirectWriter {
    file: File,
    /// A chunk is in it, from `start` on.
    buffer: Vec<u8>,
    start: usize,
    /// Bytes that wait in the chunk.
    waiting: usize,
    is_direct: bool,
}

impl DirectWriter {
    /// Makes an empty file. One on a file system that has no such writes is written through the cache.
    pub(super) fn create(path: &Path) -> io::Result<DirectWriter> {
        let open = |flags: OFlags| {
            let flags = flags.bits().cast_signed();
            OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path)
        };
        let (file, is_direct) = match open(OFlags::DIRECT) {
            Ok(file) => (file, true),
            Err(e) if e.kind() == ErrorKind::InvalidInput => (open(OFlags::empty())?, false),
            Err(e) => return Err(e),
        };
        let buffer = vec![0; CHUNK + BLOCK];
        let start = buffer.as_ptr().align_offset(BLOCK).min(BLOCK);
        Ok(DirectWriter { file, buffer, start, waiting: 0, is_direct })
    }

    /// The file, with all bytes in it, though not all of them on the disk.
    pub(super) fn into_inner(mut self) -> io::Result<File> {
        let blocks = self.waiting / BLOCK * BLOCK;
        self.write_out(0, blocks)?;
        if blocks < self.waiting {
            self.use_cache()?;
            self.write_out(blocks, self.waiting)?;
        }
        Ok(self.file)
    }

    fn write_out(&mut self, from: usize, to: usize) -> io::Result<()> {
        let result = self.file.write_all(&self.buffer[self.start + from..self.start + to]);
        match result {
            // Some file systems say only now that they have no such writes.
            Err(e) if e.kind() == ErrorKind::InvalidInput && self.is_direct => {
                self.use_cache()?;
                self.file.write_all(&self.buffer[self.start + from..self.start + to])
            }
            result => result,
        }
    }

    fn use_cache(&mut self) -> io::Result<()> {
        if self.is_direct {
            fcntl_setfl(&self.file, fcntl_getfl(&self.file)? - OFlags::DIRECT)?;
            self.is_direct = false;
        }
        Ok(())
    }
}

impl Write for DirectWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.waiting == CHUNK {
            self.write_out(0, CHUNK)?;
            self.waiting = 0;
        }
        let taken = bytes.len().min(CHUNK - self.waiting);
        let at = self.start + self.waiting;
        self.buffer[at..at + taken].copy_from_slice(&bytes[..taken]);
        self.waiting += taken;
        Ok(taken)
    }

    /// Nothing: only whole blocks are written before the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn a_file_has_the_bytes_that_were_written_whatever_their_number() -> io::Result<()> {
        let folder = TempDir::new().map_err(io::Error::other)?;
        for size in [0, 1, BLOCK, BLOCK + 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3 * BLOCK + 5] {
            let bytes: Vec<u8> = (0..size).map(|i| (i / 7) as u8).collect();
            let path = folder.path().join(size.to_string());
            let mut writer = DirectWriter::create(&path)?;
            for piece in bytes.chunks(100_003) {
                writer.write_all(piece)?;
            }
            writer.into_inner()?.sync_all()?;
            assert!(std::fs::read(&path)? == bytes, "{size} bytes");
        }
        Ok(())
    }
}
