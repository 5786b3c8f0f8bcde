//! A writer that bypasses the page cache: the disk reads the bytes from the process's memory, which leaves
//! processor time and caches to other threads.

use crate::store::Chunk;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

#[derive(Debug)]
pub(super) struct DirectWriter {
    target: Target,
    /// Bytes that are not written yet; the bytes already written are whole blocks.
    chunk: Chunk,
}

#[derive(Debug)]
struct Target {
    file: File,
    is_direct: bool,
}

impl Target {
    /// Creates an empty file. If the file system does not support direct writes, the file is written through
    /// the page cache.
    fn create(path: &Path) -> io::Result<Target> {
        let open = |flags: OFlags| {
            let flags = flags.bits().cast_signed();
            OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path)
        };
        match open(OFlags::DIRECT) {
            Ok(file) => Ok(Target { file, is_direct: true }),
            Err(e) if e.kind() == ErrorKind::InvalidInput => {
                Ok(Target { file: open(OFlags::empty())?, is_direct: false })
            }
            Err(e) => Err(e),
        }
    }

    fn write_out(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.file.write_all(bytes) {
            // Some file systems reject direct writes only at the first write.
            Err(e) if e.kind() == ErrorKind::InvalidInput && self.is_direct => {
                self.use_cache()?;
                self.file.write_all(bytes)
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

impl DirectWriter {
    pub(super) fn create(path: &Path) -> io::Result<DirectWriter> {
        Ok(DirectWriter { target: Target::create(path)?, chunk: Chunk::default() })
    }

    /// Writes all remaining bytes and returns the file, whose bytes may not be on the disk yet.
    pub(super) fn into_inner(mut self) -> io::Result<File> {
        let (blocks, rest) = self.chunk.filled().split_at(whole_blocks(self.chunk.filled()));
        self.target.write_out(blocks)?;
        if !rest.is_empty() {
            self.target.use_cache()?;
            self.target.write_out(rest)?;
        }
        Ok(self.target.file)
    }
}

/// Returns the number of bytes in whole blocks.
fn whole_blocks(bytes: &[u8]) -> usize {
    bytes.len() / Chunk::BLOCK * Chunk::BLOCK
}

impl Write for DirectWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let blocks = whole_blocks(bytes);
        if self.chunk.filled().is_empty() && blocks > 0 && bytes.as_ptr().align_offset(Chunk::BLOCK) == 0 {
            self.target.write_out(&bytes[..blocks])?;
            return Ok(blocks);
        }
        if self.chunk.is_full() {
            self.target.write_out(self.chunk.filled())?;
            self.chunk.clear();
        }
        Ok(self.chunk.add(bytes))
    }

    /// Does nothing, because only whole blocks are written before the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    const BLOCK: usize = Chunk::BLOCK;
    const SIZE: usize = Chunk::SIZE;

    #[test]
    fn files_of_any_size_have_the_written_bytes() -> io::Result<()> {
        let folder = TempDir::new().map_err(io::Error::other)?;
        for size in [0, 1, BLOCK, BLOCK + 1, SIZE, SIZE + 1, 2 * SIZE + 3 * BLOCK + 5] {
            // Each case has the distance of the bytes from block-aligned memory, and the size of the pieces
            // written.
            for (start, piece) in [(0, 100_003), (0, 3 * BLOCK), (1, 3 * BLOCK), (0, usize::MAX)] {
                let memory: Vec<u8> = (0..size + 2 * BLOCK).map(|i| (i / 7) as u8).collect();
                let start = start + memory.as_ptr().align_offset(BLOCK).min(BLOCK);
                let bytes = &memory[start..start + size];
                let path = folder.path().join(format!("{size}-{start}-{piece}"));
                let mut writer = DirectWriter::create(&path)?;
                for piece in bytes.chunks(piece) {
                    writer.write_all(piece)?;
                }
                writer.into_inner()?.sync_all()?;
                assert!(std::fs::read(&path)? == bytes, "{size} bytes from {start} in pieces of {piece}");
            }
        }
        Ok(())
    }
}
