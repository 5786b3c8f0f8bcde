//! What is asked for while a product is computed, so that it is in a near cache when its turn comes.

use super::Left;
use crate::kernels::cpu::cache::FLOATS;

/// What a sweep asks for besides the right matrix.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels::cpu) enum Ahead<'a> {
    /// Nothing: what is read is in a near cache, or the processor fetches it by itself.
    Nothing,
    /// The left matrix's rows of the block after the one that is computed. Their steps follow each other in memory.
    Rows,
    /// What is read after this sweep.
    Memory(&'a [f32]),
}

/// Memory in two pieces, of which sweeps ask for as much as they compute: of one piece, then of the other.
#[derive(Debug, Default)]
pub(in crate::kernels::cpu) struct Later<'a> {
    pieces: [&'a [f32]; 2],
    /// Elements of both, for so many rows.
    len: usize,
    rows: usize,
}

impl<'a> Later<'a> {
    /// For sweeps that have so many rows together.
    pub(in crate::kernels::cpu) fn new(pieces: [&'a [f32]; 2], rows: usize) -> Later<'a> {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        Later { pieces, len, rows }
    }

    /// What the next sweep asks for, over so many rows.
    pub(in crate::kernels::cpu) fn next(&mut self, rows: usize) -> Ahead<'a> {
        let [first, second] = &mut self.pieces;
        let piece = if first.is_empty() { second } else { first };
        let len = (self.len * rows).div_ceil(self.rows.max(1));
        let (part, rest) = piece.split_at(len.next_multiple_of(FLOATS).min(piece.len()));
        *piece = rest;
        if part.is_empty() { Ahead::Nothing } else { Ahead::Memory(part) }
    }
}

/// What a sweep still asks for: after every [`FLOATS`] steps of a run, `each` places, `pace` elements apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) next: *const f32,
    pub(super) each: usize,
    pub(super) pace: usize,
}

impl Asked {
    /// Asks during the sweep of so many blocks.
    pub(super) fn new(left: &Left<'_>, blocks: usize) -> Asked {
        let Ahead::Memory(memory @ [_, ..]) = left.ahead else {
            return Asked { next: std::ptr::null(), each: 0, pace: 0 };
        };
        let times: usize = left.runs.iter().map(|run| run.len.div_ceil(FLOATS) * blocks).sum();
        let times = times.max(1);
        let each = memory.len().div_ceil(FLOATS * times);
        Asked { next: memory.as_ptr(), each, pace: memory.len().div_ceil(each * times) }
    }
}
