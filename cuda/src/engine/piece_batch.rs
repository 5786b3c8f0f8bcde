//! Batches of launches: one launch does a kernel's work on several tensors, called pieces. Independent launches
//! of a kernel during a capture are batched, because a graph runs its kernels one after the other, and a small
//! kernel takes longer to start than to run.

use super::arguments::Arguments;
use super::driver::Address;
use super::program::Function;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Largest number of pieces in a launch: `MOST_PIECES` of the `.cu` files.
const MAX_PIECES: usize = 16;

/// Number of elements of a piece that a thread block computes at a time: `CHUNK` of the `.cu` files.
const CHUNK: usize = 1024;

/// A kernel's work on one tensor.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    /// The kernel's arguments for this piece, a fixed number of words per kernel.
    words: SmallVec<[i64; 6]>,
    /// Number of elements of the piece's tensor.
    count: usize,
    /// The address ranges that the piece reads.
    reads: SmallVec<[Range<u64>; 2]>,
    /// The address ranges that the piece writes, and may also read.
    writes: SmallVec<[Range<u64>; 4]>,
}

impl Piece {
    /// Returns a piece of `count` elements.
    pub fn new(count: usize) -> Piece {
        Piece { count, ..Piece::default() }
    }

    /// Adds the address of `bytes` bytes that the kernel reads.
    pub fn reads(mut self, at: Address, bytes: usize) -> Piece {
        self.words.push(at.0 as i64);
        self.reads.push(at.0..at.0 + bytes as u64);
        self
    }

    /// Adds the address of `bytes` bytes that the kernel reads and writes.
    pub fn writes(mut self, at: Address, bytes: usize) -> Piece {
        self.words.push(at.0 as i64);
        self.writes.push(at.0..at.0 + bytes as u64);
        self
    }

    /// Adds a null address, for an argument that this piece does not use.
    pub fn none(mut self) -> Piece {
        self.words.push(0);
        self
    }

    /// Returns whether two pieces must run one after the other, because one writes memory that the other reads
    /// or writes.
    fn depends_on(&self, other: &Piece) -> bool {
        let meet = |a: &[Range<u64>], b: &[Range<u64>]| {
            a.iter().any(|a| b.iter().any(|b| a.start < b.end && b.start < a.end))
        };
        meet(&self.writes, &other.writes)
            || meet(&self.writes, &other.reads)
            || meet(&self.reads, &other.writes)
    }
}

/// Independent pieces of one kernel, to be launched together.
#[derive(Debug)]
pub(super) struct PieceBatch {
    pub(super) function: Arc<Function>,
    /// The arguments that all pieces share; in the launch they follow the pieces.
    shared: Arguments,
    pieces: SmallVec<[Piece; 1]>,
}

impl PieceBatch {
    /// Returns a batch of one piece.
    pub(super) fn new(function: &Arc<Function>, shared: &Arguments, piece: Piece) -> PieceBatch {
        let mut pieces = SmallVec::new();
        pieces.push(piece);
        PieceBatch { function: function.clone(), shared: shared.clone(), pieces }
    }

    /// Adds a piece if it is of the same kernel with the same shared arguments, independent of the pieces in
    /// the batch, and the batch is not full. Returns whether the piece was added.
    pub(super) fn try_add(&mut self, function: &Arc<Function>, shared: &Arguments, piece: &Piece) -> bool {
        let fits = self.pieces.len() < MAX_PIECES
            && Arc::ptr_eq(function, &self.function)
            && *shared == self.shared
            && !self.pieces.iter().any(|other| piece.depends_on(other));
        if fits {
            self.pieces.push(piece.clone());
        }
        fits
    }

    /// Returns the number of thread blocks with which each block computes one chunk of a piece.
    pub(super) fn blocks(&self) -> usize {
        self.pieces.iter().map(|piece| piece.count.div_ceil(CHUNK)).sum()
    }

    /// Returns the kernel's arguments: the `Pieces` structure of `prelude.cu`, and the shared arguments.
    pub(super) fn arguments(&self) -> Arguments {
        let width = self.pieces.first().map_or(0, |piece| piece.words.len());
        let mut words: SmallVec<[i64; 128]> = SmallVec::new();
        words.push(self.pieces.len() as i64);
        words.extend(self.pieces.iter().flat_map(|piece| piece.words.iter().copied()));
        words.resize(1 + MAX_PIECES * width, 0);
        words.extend(self.pieces.iter().map(|piece| piece.count as i64));
        words.resize(1 + MAX_PIECES * (width + 1), 0);
        words.extend(self.pieces.iter().scan(0, |end, piece| {
            *end += piece.count.div_ceil(CHUNK) as i64;
            Some(*end)
        }));
        words.resize(1 + MAX_PIECES * (width + 2), 0);
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
    fn independent_pieces_of_one_kernel_are_batched() {
        let function = |id| Arc::new(Function { id: FunctionId(id) });
        let (one, other) = (function(1), function(2));
        let shared = Arguments::new().flag(true);
        let mut pieces = PieceBatch::new(&one, &shared, piece(0x1000, 0x2000, 1500));
        assert!(pieces.try_add(&one, &shared, &piece(0x1000, 0x4000, 3)), "both read the same");
        assert!(!pieces.try_add(&other, &shared, &piece(0x1000, 0x5000, 3)), "another kernel");
        assert!(!pieces.try_add(&one, &Arguments::new().flag(false), &piece(0x1000, 0x5000, 3)), "told else");
        assert!(!pieces.try_add(&one, &shared, &piece(0x5000, 0x4008, 3)), "writes what is written");
        assert!(!pieces.try_add(&one, &shared, &piece(0x4008, 0x5000, 3)), "reads what is written");
        assert!(!pieces.try_add(&one, &shared, &piece(0x6000, 0x1008, 3)), "writes what is read");
        assert!(pieces.try_add(&one, &shared, &piece(0x6000, 0x400c, 1)), "right behind");
        assert_eq!(pieces.blocks(), 2 + 1 + 1);
        let arguments = pieces.arguments();
        let all: Vec<&[u64]> = arguments.iter().collect();
        assert_eq!((all.len(), all[0].len(), all[1]), (2, 1 + 16 * 4, &[1][..]));
        let from = |i: usize| &all[0][i..i + 3];
        assert_eq!((all[0][0], &all[0][1..7]), (3, &[0x1000, 0x2000, 0x1000, 0x4000, 0x6000, 0x400c][..]));
        assert_eq!((from(33), from(49)), (&[1500, 3, 1][..], &[2, 3, 4][..]));
    }

    #[test]
    fn full_batch_accepts_no_more_pieces() {
        let function = Arc::new(Function { id: FunctionId(1) });
        let shared = Arguments::new();
        let of = |i: u64| piece(i << 16, i << 24, 1);
        let mut pieces = PieceBatch::new(&function, &shared, of(1));
        assert_eq!((2..100).filter(|i| pieces.try_add(&function, &shared, &of(*i))).count(), MAX_PIECES - 1);
    }
}
