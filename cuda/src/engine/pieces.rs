//! One kernel's work on several tensors in one launch. What is captured side by side is launched together: a graph runs its
//! kernels one after the other, and a small one takes longer to begin than to run.

use super::arguments::Arguments;
use super::driver::Address;
use super::program::Function;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// So many are a launch's at most: `MOST_PIECES` of the `.cu` files.
const MOST: usize = 16;

/// Elements of a piece that a block computes at a time: `CHUNK` of the `.cu` files.
const CHUNK: usize = 1024;

/// One tensor's part of the work.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    /// What the kernel is told of it: as many words for each.
    words: SmallVec<[i64; 6]>,
    count: usize,
    reads: SmallVec<[Range<u64>; 2]>,
    writes: SmallVec<[Range<u64>; 4]>,
}

impl Piece {
    /// Of so many elements.
    pub fn new(count: usize) -> Piece {
        Piece { count, ..Piece::default() }
    }

    /// The kernel is told of so many bytes, and reads them.
    pub fn reads(mut self, at: Address, bytes: usize) -> Piece {
        self.words.push(at.0 as i64);
        self.reads.push(at.0..at.0 + bytes as u64);
        self
    }

    /// The kernel is told of so many bytes, and reads and writes them.
    pub fn writes(mut self, at: Address, bytes: usize) -> Piece {
        self.words.push(at.0 as i64);
        self.writes.push(at.0..at.0 + bytes as u64);
        self
    }

    /// The kernel is told a word that has no meaning for this piece.
    pub fn none(mut self) -> Piece {
        self.words.push(0);
        self
    }

    /// Whether the order of the two matters.
    fn depends_on(&self, other: &Piece) -> bool {
        let meet = |a: &[Range<u64>], b: &[Range<u64>]| {
            a.iter().any(|a| b.iter().any(|b| a.start < b.end && b.start < a.end))
        };
        meet(&self.writes, &other.writes)
            || meet(&self.writes, &other.reads)
            || meet(&self.reads, &other.writes)
    }
}

/// Pieces that no other has to wait for.
#[derive(Debug)]
pub(super) struct Pieces {
    pub(super) function: Arc<Function>,
    /// What the kernel is told once, behind its pieces.
    shared: Arguments,
    pieces: SmallVec<[Piece; 1]>,
}

impl Pieces {
    pub(super) fn new(function: &Arc<Function>, shared: &Arguments, piece: Piece) -> Pieces {
        let mut pieces = SmallVec::new();
        pieces.push(piece);
        Pieces { function: function.clone(), shared: shared.clone(), pieces }
    }

    /// Takes one more of the same kernel's in, unless it has to come later.
    pub(super) fn add(&mut self, function: &Arc<Function>, shared: &Arguments, piece: &Piece) -> bool {
        let fits = self.pieces.len() < MOST
            && Arc::ptr_eq(function, &self.function)
            && *shared == self.shared
            && !self.pieces.iter().any(|other| piece.depends_on(other));
        if fits {
            self.pieces.push(piece.clone());
        }
        fits
    }

    /// Blocks that do all in one go.
    pub(super) fn blocks(&self) -> usize {
        self.pieces.iter().map(|piece| piece.count.div_ceil(CHUNK)).sum()
    }

    /// `Pieces` of the `.cu` files, and what is told once.
    pub(super) fn arguments(&self) -> Arguments {
        let width = self.pieces.first().map_or(0, |piece| piece.words.len());
        let mut words: SmallVec<[i64; 128]> = SmallVec::new();
        words.push(self.pieces.len() as i64);
        words.extend(self.pieces.iter().flat_map(|piece| piece.words.iter().copied()));
        words.resize(1 + MOST * width, 0);
        words.extend(self.pieces.iter().map(|piece| piece.count as i64));
        words.resize(1 + MOST * (width + 1), 0);
        words.extend(self.pieces.iter().scan(0, |end, piece| {
            *end += piece.count.div_ceil(CHUNK) as i64;
            Some(*end)
        }));
        words.resize(1 + MOST * (width + 2), 0);
        Arguments::new().structure(words).followed_by(&self.shared)
    }
}

#[cfg(test)]
mod tests {
    use super::super::driver::FunctionId;
    use super::*;

    fn piece(from: u64, to: u64, count: usize) -> Piece {
        Piece::new(count).reads(Address(from), count * 4).writes(Address(to), count * 4)
    }

    #[test]
    fn pieces_of_one_kernel_that_need_not_wait_for_each_other_go_together() {
        let function = |id| Arc::new(Function { id: FunctionId(id) });
        let (one, other) = (function(1), function(2));
        let shared = Arguments::new().flag(true);
        let mut pieces = Pieces::new(&one, &shared, piece(0x1000, 0x2000, 1500));
        assert!(pieces.add(&one, &shared, &piece(0x1000, 0x4000, 3)), "both read the same");
        assert!(!pieces.add(&other, &shared, &piece(0x1000, 0x5000, 3)), "another kernel");
        assert!(!pieces.add(&one, &Arguments::new().flag(false), &piece(0x1000, 0x5000, 3)), "told else");
        assert!(!pieces.add(&one, &shared, &piece(0x5000, 0x4008, 3)), "writes what is written");
        assert!(!pieces.add(&one, &shared, &piece(0x4008, 0x5000, 3)), "reads what is written");
        assert!(!pieces.add(&one, &shared, &piece(0x6000, 0x1008, 3)), "writes what is read");
        assert!(pieces.add(&one, &shared, &piece(0x6000, 0x400c, 1)), "right behind");
        assert_eq!(pieces.blocks(), 2 + 1 + 1);
        let arguments = pieces.arguments();
        let all: Vec<&[u64]> = arguments.iter().collect();
        assert_eq!((all.len(), all[0].len(), all[1]), (2, 1 + 16 * 4, &[1][..]));
        let from = |i: usize| &all[0][i..i + 3];
        assert_eq!((all[0][0], &all[0][1..7]), (3, &[0x1000, 0x2000, 0x1000, 0x4000, 0x6000, 0x400c][..]));
        assert_eq!((from(33), from(49)), (&[1500, 3, 1][..], &[2, 3, 4][..]));
    }

    #[test]
    fn a_launch_takes_no_more_than_it_has_room_for() {
        let function = Arc::new(Function { id: FunctionId(1) });
        let shared = Arguments::new();
        let of = |i: u64| piece(i << 16, i << 24, 1);
        let mut pieces = Pieces::new(&function, &shared, of(1));
        assert_eq!((2..100).filter(|i| pieces.add(&function, &shared, &of(*i))).count(), MOST - 1);
    }
}
