//! Files of blocks: each block is stored as its length in 8 bytes, little-endian, and its bytes, without checksums.

use super::sink::Sink;
use super::source::{Compression, Source};
use device::{Error, Result};
use graph::Code;
use std::path::Path;

/// The number of bytes of a length.
const HEADER: u64 = 8;

/// A reader that returns blocks one after the other.
#[derive(Debug)]
pub struct BlockReader(Source);

impl BlockReader {
    /// Opens a file of blocks.
    pub fn open(path: impl AsRef<Path>, compression: Compression) -> Result<BlockReader> {
        Source::open(path, compression).map(BlockReader)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the position of the next block, in decompressed bytes.
    pub fn offset(&self) -> u64 {
        self.0.position()
    }

    /// Moves forward to the block that starts at `offset`, in decompressed bytes.
    pub fn advance_to(&mut self, offset: u64) -> Result<()> {
        self.0.advance_to(offset)
    }

    /// Returns the next block, or `None` at the end.
    ///
    /// # Errors
    /// `DataLoss` for a truncated block.
    pub fn next_block(&mut self) -> Result<Option<Vec<u8>>> {
        let at = self.0.position();
        let mut header = Vec::new();
        if self.0.read(HEADER, &mut header)? == 0 {
            return Ok(None);
        }
        let mut block = Vec::new();
        let length = header.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        match length {
            Some(length) if self.0.read(length, &mut block)? == length => Ok(Some(block)),
            _ => {
                let message = format!("{} has a truncated block at byte {at}", self.path().display());
                Err(Error::new(Code::DataLoss, message))
            }
        }
    }
}

/// A writer that appends blocks to a file.
#[derive(Debug)]
pub struct BlockWriter(Sink);

impl BlockWriter {
    /// Creates the file; an existing file is replaced.
    pub fn create(path: impl AsRef<Path>, compression: Compression) -> Result<BlockWriter> {
        Sink::create(path, compression).map(BlockWriter)
    }

    /// Appends one block to the file.
    pub fn write(&mut self, block: &[u8]) -> Result<()> {
        self.0.write(&(block.len() as u64).to_le_bytes())?;
        self.0.write(block)
    }

    /// Writes the remaining bytes, and returns once the file outlasts a loss of power. Dropping the writer writes the
    /// bytes too, but ignores errors.
    pub fn finish_stored(self) -> Result<()> {
        self.0.finish_stored()
    }
}
