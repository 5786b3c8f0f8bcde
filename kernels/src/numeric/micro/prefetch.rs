//! Prefetching during products: memory that is read soon is loaded into a near cache while a block is computed.

use super::LeftMatrix;
use crate::numeric::cpu_cache::FLOATS_PER_LINE;

/// The memory that a sweep prefetches in addition to the right matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prefetch<'a> {
    /// The sweep prefetches nothing: the data is in a near cache already, or the hardware prefetcher loads it.
    Nothing,
    /// The sweep prefetches the rows of the left matrix for the next block. The steps of each row must be contiguous in
    /// memory.
    Rows,
    /// The sweep prefetches memory that will be read after the sweep.
    Memory(&'a [f32]),
}

/// Two slices to prefetch, one after the other, during several sweeps. Each sweep prefetches a part in proportion to
/// its number of rows.
#[derive(Debug, Default)]
pub(crate) struct PrefetchQueue<'a> {
    pieces: [&'a [f32]; 2],
    /// Total number of elements of both slices, which are prefetched during sweeps of `rows` rows in total.
    len: usize,
    rows: usize,
}

impl<'a> PrefetchQueue<'a> {
    /// Returns a queue that prefetches `pieces` during sweeps that have `rows` rows in total.
    pub(crate) fn new(pieces: [&'a [f32]; 2], rows: usize) -> PrefetchQueue<'a> {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        PrefetchQueue { pieces, len, rows }
    }

    /// Returns the memory that the next sweep, which has `rows` rows, prefetches, and removes it from the queue.
    pub(crate) fn next(&mut self, rows: usize) -> Prefetch<'a> {
        let [first, second] = &mut self.pieces;
        let piece = if first.is_empty() { second } else { first };
        let len = (self.len * rows).div_ceil(self.rows.max(1));
        let (part, rest) = piece.split_at(len.next_multiple_of(FLOATS_PER_LINE).min(piece.len()));
        *piece = rest;
        if part.is_empty() { Prefetch::Nothing } else { Prefetch::Memory(part) }
    }
}

/// The position of a sweep's prefetches: after every [`FLOATS_PER_LINE`] steps of a run, `each` addresses are
/// prefetched, which are `pace` elements apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefetchCursor {
    pub(super) next: *const f32,
    pub(super) each: usize,
    pub(super) pace: usize,
}

impl PrefetchCursor {
    /// Distributes the prefetches of `left.prefetch` over a sweep of `blocks` blocks.
    pub(super) fn new(left: &LeftMatrix<'_>, blocks: usize) -> PrefetchCursor {
        let Prefetch::Memory(memory @ [_, ..]) = left.prefetch else {
            return PrefetchCursor { next: std::ptr::null(), each: 0, pace: 0 };
        };
        let times: usize = left.runs.iter().map(|run| run.len.div_ceil(FLOATS_PER_LINE) * blocks).sum();
        let times = times.max(1);
        let each = memory.len().div_ceil(FLOATS_PER_LINE * times);
        PrefetchCursor { next: memory.as_ptr(), each, pace: memory.len().div_ceil(each * times) }
    }
}
