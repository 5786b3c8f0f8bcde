//! Blocks of a variable's value whose old contents a snapshot saves before they change.

use std::ops::Range;

/// The limits of a block's size in bytes. Short rows form blocks of at most `MIN_BLOCK_LEN`, a row longer than
/// `MAX_BLOCK_LEN` is divided into several blocks, and any other row is one block.
const MIN_BLOCK_LEN: usize = 256;
const MAX_BLOCK_LEN: usize = 64 << 10;

/// The size in bytes of a segment of the value. Saved blocks that start in one segment are stored together.
const SEGMENT_LEN: usize = 256 << 10;

/// The division of a value into blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// The size of the value in bytes.
    pub(super) total: usize,
    /// The size of each block in bytes; the last block may be shorter.
    block_len: usize,
}

impl Blocks {
    /// Returns the division of a value of `total` bytes in rows of `row` bytes.
    pub(super) fn of(total: usize, row: usize) -> Blocks {
        let rows = MIN_BLOCK_LEN.checked_div(row).unwrap_or(1).max(1);
        Blocks { total, block_len: (row * rows).clamp(1, MAX_BLOCK_LEN) }
    }

    /// Returns the blocks that contain at least one byte of the range `bytes`.
    pub(super) fn containing(self, bytes: &Range<usize>) -> Range<usize> {
        bytes.start / self.block_len..bytes.end.div_ceil(self.block_len)
    }

    fn bytes(self, block: usize) -> Range<usize> {
        block * self.block_len..((block + 1) * self.block_len).min(self.total)
    }

    fn segment(self, block: usize) -> usize {
        block * self.block_len / SEGMENT_LEN
    }
}

/// The saved blocks of one value.
#[derive(Debug)]
pub(super) struct SavedBlocks {
    blocks: Blocks,
    /// A bit for each block, set once the block is saved; empty until the first block is saved.
    is_saved: Vec<u64>,
    segments: Vec<Segment>,
}

/// The old contents of the saved blocks that start in one segment of the value, in the order in which they were saved.
#[derive(Clone, Debug, Default)]
struct Segment {
    /// The number of each saved block, and the offset of the block's contents in `bytes`.
    blocks: Vec<(usize, usize)>,
    bytes: Vec<u8>,
}

impl SavedBlocks {
    pub(super) fn new(blocks: Blocks) -> SavedBlocks {
        SavedBlocks { blocks, is_saved: Vec::new(), segments: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.iter().all(|segment| segment.blocks.is_empty())
    }

    /// Saves a block of `value`, unless it is saved already.
    pub(super) fn save(&mut self, value: &[u8], block: usize) {
        if self.is_saved.is_empty() {
            let blocks = self.blocks.total.div_ceil(self.blocks.block_len);
            self.is_saved.resize(blocks.div_ceil(64), 0);
            self.segments.resize(self.blocks.total.div_ceil(SEGMENT_LEN), Segment::default());
        }
        let (word, bit) = (&mut self.is_saved[block / 64], 1 << (block % 64));
        if *word & bit == 0 {
            *word |= bit;
            let segment = &mut self.segments[self.blocks.segment(block)];
            segment.blocks.push((block, segment.bytes.len()));
            segment.bytes.extend_from_slice(&value[self.blocks.bytes(block)]);
        }
    }

    /// Copies the saved bytes of `range` over `out`, which has the bytes of `range` in the current value.
    pub(super) fn restore(&self, range: &Range<usize>, out: &mut [u8]) {
        if self.segments.is_empty() || range.is_empty() {
            return;
        }
        let blocks = self.blocks.containing(range);
        let segments = self.blocks.segment(blocks.start)..=self.blocks.segment(blocks.end - 1);
        for segment in &self.segments[segments] {
            for (block, at) in segment.blocks.iter().filter(|(block, _)| blocks.contains(block)) {
                let all = self.blocks.bytes(*block);
                let (start, end) = (all.start.max(range.start), all.end.min(range.end));
                let saved = &segment.bytes[at + start - all.start..at + end - all.start];
                out[start - range.start..end - range.start].copy_from_slice(saved);
            }
        }
    }

    /// Drops the saved blocks of `range`, whose bytes have been read. The blocks before `range` have been dropped
    /// already.
    pub(super) fn drop_range(&mut self, range: &Range<usize>) {
        let segment = |byte: usize| self.blocks.segment(byte / self.blocks.block_len);
        let is_at_end = range.end >= self.blocks.total;
        let (start, end) = (segment(range.start), if is_at_end { usize::MAX } else { segment(range.end) });
        for segment in self.segments.iter_mut().take(end).skip(start) {
            *segment = Segment::default();
        }
    }
}
