//! Blocks of a value as they were before they changed.

use std::ops::Range;

/// Bytes that are kept when some of them change: a row, but several of rows that are shorter, and less than one of rows
/// that are longer.
const LEAST_BLOCK: usize = 256;
const MOST_BLOCK: usize = 64 << 10;

/// Blocks that begin within so many bytes are kept together.
const SEGMENT: usize = 256 << 10;

/// How a value is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// Bytes of all.
    pub(super) total: usize,
    /// Bytes of each, but the last may have fewer.
    each: usize,
}

impl Blocks {
    /// Of a value of so many bytes, in rows of so many.
    pub(super) fn of(total: usize, row: usize) -> Blocks {
        let rows = LEAST_BLOCK.checked_div(row).unwrap_or(1).max(1);
        Blocks { total, each: (row * rows).clamp(1, MOST_BLOCK) }
    }

    /// The blocks that have some of these bytes.
    pub(super) fn that_have(self, bytes: &Range<usize>) -> Range<usize> {
        bytes.start / self.each..bytes.end.div_ceil(self.each)
    }

    fn bytes(self, block: usize) -> Range<usize> {
        block * self.each..((block + 1) * self.each).min(self.total)
    }

    fn segment(self, block: usize) -> usize {
        block * self.each / SEGMENT
    }
}

/// Kept blocks of one value.
#[derive(Debug)]
pub(super) struct Kept {
    blocks: Blocks,
    /// A bit a block; none before the first is kept.
    is_kept: Vec<u64>,
    segments: Vec<Segment>,
}

/// In the order in which they were kept.
#[derive(Clone, Debug, Default)]
struct Segment {
    /// Each block with where its bytes begin.
    blocks: Vec<(usize, usize)>,
    bytes: Vec<u8>,
}

impl Kept {
    pub(super) fn new(blocks: Blocks) -> Kept {
        Kept { blocks, is_kept: Vec::new(), segments: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.iter().all(|segment| segment.blocks.is_empty())
    }

    /// Keeps a block of the value that these are all bytes of, unless it is kept already.
    pub(super) fn keep(&mut self, value: &[u8], block: usize) {
        if self.is_kept.is_empty() {
            let blocks = self.blocks.total.div_ceil(self.blocks.each);
            self.is_kept.resize(blocks.div_ceil(64), 0);
            self.segments.resize(self.blocks.total.div_ceil(SEGMENT), Segment::default());
        }
        let (word, bit) = (&mut self.is_kept[block / 64], 1 << (block % 64));
        if *word & bit == 0 {
            *word |= bit;
            let segment = &mut self.segments[self.blocks.segment(block)];
            segment.blocks.push((block, segment.bytes.len()));
            segment.bytes.extend_from_slice(&value[self.blocks.bytes(block)]);
        }
    }

    /// Puts what is kept of `range` over it; `out` has those bytes of the value as it is.
    pub(super) fn restore(&self, range: &Range<usize>, out: &mut [u8]) {
        if self.segments.is_empty() || range.is_empty() {
            return;
        }
        let blocks = self.blocks.that_have(range);
        let segments = self.blocks.segment(blocks.start)..=self.blocks.segment(blocks.end - 1);
        for segment in &self.segments[segments] {
            for (block, at) in segment.blocks.iter().filter(|(block, _)| blocks.contains(block)) {
                let all = self.blocks.bytes(*block);
                let (start, end) = (all.start.max(range.start), all.end.min(range.end));
                let kept = &segment.bytes[at + start - all.start..at + end - all.start];
                out[start - range.start..end - range.start].copy_from_slice(kept);
            }
        }
    }

    /// Nothing before the end of `range` is asked for again, and what is before its start was forgotten.
    pub(super) fn forget(&mut self, range: &Range<usize>) {
        let segment = |byte: usize| self.blocks.segment(byte / self.blocks.each);
        let is_over = range.end >= self.blocks.total;
        let (start, end) = (segment(range.start), if is_over { usize::MAX } else { segment(range.end) });
        for segment in self.segments.iter_mut().take(end).skip(start) {
            *segment = Segment::default();
        }
    }
}
