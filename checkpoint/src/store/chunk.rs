//! Bytes on their way to a file.

use std::fmt::{self, Debug};

/// Bytes that gather before they are written. They begin at a whole block of memory, so that a disk can take them from
/// there.
pub struct Chunk {
    memory: Vec<u8>,
    /// Where the first block begins.
    start: usize,
    filled: usize,
}

impl Chunk {
    /// Bytes that it has room for.
    pub const SIZE: usize = 1 << 20;

    /// What the places of such bytes, in memory and in the file, are multiples of: no disk wants more.
    pub const BLOCK: usize = 4096;

    /// What is in it.
    pub fn filled(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.filled]
    }

    /// Where more may be put, before [`Chunk::advance`].
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.memory[self.start + self.filled..self.start + Chunk::SIZE]
    }

    /// So many bytes of [`Chunk::space`] have been filled.
    pub fn advance(&mut self, count: usize) {
        self.filled = (self.filled + count).min(Chunk::SIZE);
    }

    pub fn is_full(&self) -> bool {
        self.filled == Chunk::SIZE
    }

    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Adds the first of these bytes, as many as there is room for: how many those are.
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
