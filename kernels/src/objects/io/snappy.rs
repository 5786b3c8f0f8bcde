//! Files of blocks that are compressed by Snappy, each after its length as four bytes, the highest first. TensorFlow
//! stores datasets in such files.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};

/// The number of bytes that the writer compresses at once.
const BLOCK: usize = 256 << 10;

/// The largest length of a block, compressed or not; TensorFlow's writer compresses at most 16 MiB at once.
const MAX_BLOCK: usize = 64 << 20;

/// The stream of a file's decompressed bytes. A truncated file ends the stream without an error.
pub(super) struct SnappyReader {
    file: BufReader<File>,
    block: Vec<u8>,
    /// Number of bytes of `block` that have been consumed.
    read: usize,
}

impl SnappyReader {
    pub(super) fn new(file: File, buffer: usize) -> SnappyReader {
        SnappyReader { file: BufReader::with_capacity(buffer, file), block: Vec::new(), read: 0 }
    }

    /// Returns decompressed bytes that have not been consumed; an empty slice at the end.
    ///
    /// # Errors
    /// `InvalidData` if the file is damaged.
    pub(super) fn peek(&mut self) -> io::Result<&[u8]> {
        while self.read == self.block.len() {
            let mut length = [0; 4];
            let Some(()) = fill(&mut self.file, &mut length)? else { break };
            let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
            if length > MAX_BLOCK {
                return Err(damaged(format!("a block of {length} bytes")));
            }
            let mut packed = vec![0; length];
            let Some(()) = fill(&mut self.file, &mut packed)? else { break };
            let unpacked = snap::raw::decompress_len(&packed).map_err(|e| damaged(e.to_string()))?;
            if unpacked > MAX_BLOCK {
                return Err(damaged(format!("a block of {unpacked} bytes")));
            }
            self.block.clear();
            self.read = 0;
            let unpacked = snap::raw::Decoder::new().decompress_vec(&packed);
            self.block = unpacked.map_err(|e| damaged(e.to_string()))?;
        }
        Ok(&self.block[self.read..])
    }

    /// Marks `count` bytes of [`SnappyReader::peek`] as consumed.
    pub(super) fn consume(&mut self, count: usize) {
        self.read = self.block.len().min(self.read + count);
    }
}

/// Fills `bytes` from the file; returns `None` if the file ends before.
fn fill(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<Option<()>> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(Some(())),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}

fn damaged(what: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// A writer of a file that [`SnappyReader`] reads.
pub(super) struct SnappyWriter {
    file: BufWriter<File>,
    block: Vec<u8>,
}

impl SnappyWriter {
    pub(super) fn new(file: BufWriter<File>) -> SnappyWriter {
        SnappyWriter { file, block: Vec::with_capacity(BLOCK) }
    }

    /// Returns the file, which lacks the bytes that have not been flushed.
    pub(super) fn file(&self) -> &File {
        self.file.get_ref()
    }

    fn write_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let packed = snap::raw::Encoder::new().compress_vec(&self.block);
        let packed = packed.map_err(|e| io::Error::other(e.to_string()))?;
        self.block.clear();
        let length = u32::try_from(packed.len()).map_err(|_| io::Error::other("a block of 4 GiB"))?;
        self.file.write_all(&length.to_be_bytes())?;
        self.file.write_all(&packed)
    }
}

impl Write for SnappyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.block.len() >= BLOCK {
            self.write_block()?;
        }
        let count = bytes.len().min(BLOCK - self.block.len());
        self.block.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_block()?;
        self.file.flush()
    }
}

impl Drop for SnappyWriter {
    fn drop(&mut self) {
        // Errors are reported by `flush`, which the owner calls before.
        let _ = self.flush();
    }
}
