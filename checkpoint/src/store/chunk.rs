//! The write buffer of files.

use std::fmt::{self, Debug};

/// A buffer that collects bytes before they are written. The buffer is aligned to [`Chunk::BLOCK`] bytes, so
/// that a disk can read it directly.
pub struct Chunk {
    memory: Vec<u8>,
    /// Offset of the first aligned byte in `memory`.
    start: usize,
    filled: usize,
}

impl Chunk {
    /// Capacity of a buffer in bytes.
    pub const SIZE: usize = 1 << 20;

    /// Alignment in bytes of direct writes, in memory and in the file; no disk requires more.
    pub const BLOCK: usize = 4096;

    /// Returns the bytes in the buffer.
    pub fn filled(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.filled]
    }

    /// Returns the free space, into which bytes may be written before [`Chunk::advance`].
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.memory[self.start + self.filled..self.start + Chunk::SIZE]
    }

    /// Marks the first `count` bytes of [`Chunk::space`] as filled.
    pub fn advance(&mut self, count: usize) {
        self.filled = (self.filled + count).min(Chunk::SIZE);
    }

    /// Returns whether the buffer has no free space.
    pub fn is_full(&self) -> bool {
        self.filled == Chunk::SIZE
    }

    /// Removes all bytes from the buffer.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Adds as many of the bytes as fit, and returns their number.
    pub fn add(&mut self, bytes: &[u8]) -> usize {
        let space = self.space();
        let count = bytes.len().min(space.len());
        space[..count].copy_from_slice(&bytes[..count]);
        self.advance(count);
        count
    }
}

impl Default for Chunk {
    fn default() -> Chunk {
        let memory = vec![0; Chunk::SIZE + Chunk::BLOCK];
        let start = memory.as_ptr().align_offset(Chunk::BLOCK).min(Chunk::BLOCK);
        Chunk { memory, start, filled: 0 }
    }
}

impl Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} of {} bytes)", self.filled, Chunk::SIZE)
    }
}
