//! The innermost loop of products of `f32` matrices: a block of the product as large as the vector registers hold,
//! for the instruction set of the machine. Rows of the left matrix may lie anywhere, so that the patches of a
//! convolution are read where they are; the right matrix comes in panels ([`super::panel`]).

#[macro_use]
mod block;
mod ahead;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
use super::simd::{Level, level};
pub(super) use ahead::{Ahead, Later};
use std::ops::Range;

/// Steps of the inner dimension at a time: so many that what is written after them costs little, so few that sums of single
/// precision lose about as much as TensorFlow's.
pub(super) const STEPS: usize = 512;

/// Where the last of `count` begins.
pub(super) fn extent(count: usize, stride: usize) -> usize {
    count.saturating_sub(1).saturating_mul(stride)
}

/// Cuts `len` into ranges of about the same length, at most `most`.
pub(super) fn cut(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let each = len.div_ceil(len.div_ceil(most).max(1)).max(1);
    (0..len).step_by(each).map(move |first| first..len.min(first + each))
}

/// Cuts `len` rows, of which there are some, into blocks of `most`. Where less than half a block would be left, which would
/// mostly wait for the right matrix, the last two have about the same.
fn cut_rows(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let last = (len - 1) / most;
    let left = len - last * most;
    let end = match last {
        0 => len,
        _ if left * 2 < most => (last - 1) * most + (most + left).div_ceil(2),
        _ => last * most,
    };
    let start = move |i: usize| if i == last && i > 0 { end } else { i * most };
    (0..=last).map(move |i| start(i)..if i == last { len } else { start(i + 1) })
}

/// Steps of the inner dimension that follow each other in both matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Where they begin in the left matrix, from where a row does.
    pub(super) start: usize,
    /// The first one's number in the right matrix.
    pub(super) first: usize,
    pub(super) len: usize,
}

/// The left matrix: element (row `i`, step `t` of run `r`) is at `rows[i] + r.start + t * step`, and meets row
/// `r.first + t` of the right matrix. Steps that are in no run, as those through which only zeros would be seen, add nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: &'a [usize],
    pub(super) runs: &'a [Run],
    pub(super) step: usize,
    pub(super) ahead: Ahead<'a>,
}

/// Columns of the right matrix: those of step `t` start at `t * step`. There are as many as
/// [`Registers::whole_vectors`] makes of the width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Right<'a> {
    pub(super) data: &'a [f32],
    pub(super) step: usize,
}

/// Where the product goes: element (row `i`, column `j`) is at `rows[i] + j`.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub(super) data: &'a mut [f32],
    pub(super) rows: &'a [usize],
    pub(super) width: usize,
    /// Whether the product is added to what is there.
    pub(super) add: bool,
}

/// How large blocks are, and what computes them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers {
    /// Columns of the widest block: so wide are panels at most.
    pub(super) columns: usize,
    /// Elements of a vector.
    pub(super) lanes: usize,
    sweep: unsafe fn(&Left<'_>, &Right<'_>, &mut Place<'_>),
}

impl Registers {
    /// Those of this machine.
    pub(super) fn get() -> &'static Registers {
        #[cfg(target_arch = "x86_64")]
        match level() {
            Level::V4 => return &avx512::REGISTERS,
            Level::V3 => return &avx2::REGISTERS,
            Level::Baseline => {}
        }
        &portable::REGISTERS
    }

    /// What the processor lacks nothing for, the best first: for tests.
    #[cfg(test)]
    fn all() -> Vec<&'static Registers> {
        #[cfg(target_arch = "x86_64")]
        return match level() {
            Level::V4 => vec![&avx512::REGISTERS, &avx2::REGISTERS, &portable::REGISTERS],
            Level::V3 => vec![&avx2::REGISTERS, &portable::REGISTERS],
            Level::Baseline => vec![&portable::REGISTERS],
        };
        #[cfg(not(target_arch = "x86_64"))]
        vec![&portable::REGISTERS]
    }

    /// Columns that are computed for `width` of them.
    pub(super) fn whole_vectors(&self, width: usize) -> usize {
        width.next_multiple_of(self.lanes)
    }

    /// Cuts `width` columns into panels of about equally many vectors, as few as there can be.
    pub(super) fn panels(&self, width: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (count, vectors) = (width.div_ceil(self.columns), width.div_ceil(self.lanes));
        let lanes = self.lanes;
        // The first ones have a vector more where they cannot all have the same.
        let start = move |i: usize| (i * (vectors / count) + i.min(vectors % count)) * lanes;
        (0..count).map(move |i| start(i)..start(i + 1).min(width))
    }

    /// `place = left * right`, or `place += left * right`, over all rows and at most [`Registers::columns`] columns.
    /// Each element's products are added in the order of the steps, whatever rows are computed with it.
    ///
    /// # Panics
    /// If something reaches outside its data.
    pub(super) fn sweep(&self, left: &Left<'_>, right: &Right<'_>, place: &mut Place<'_>) {
        assert_eq!(left.rows.len(), place.rows.len(), "rows of a product that do not fit");
        assert!(0 < place.width && place.width <= self.columns, "a panel of {} columns", place.width);
        let (Some(last_left), Some(last_place)) = (left.rows.iter().max(), place.rows.iter().max()) else {
            return;
        };
        for run in left.runs.iter().filter(|run| run.len > 0) {
            let reached = last_left.saturating_add(run.start).saturating_add(extent(run.len, left.step));
            assert!(reached < left.data.len(), "a left matrix reaches outside its data");
            let last = extent(run.first.saturating_add(run.len), right.step);
            let end = last.saturating_add(self.whole_vectors(place.width));
            assert!(end <= right.data.len(), "a right matrix reaches outside its data");
        }
        assert!(
            last_place.saturating_add(place.width) <= place.data.len(),
            "a product reaches outside its place"
        );
        // SAFETY: every element that the rows, runs, steps and columns reach was seen to be inside its slice, and
        // `get` gives what the processor has instructions for.
        unsafe { (self.sweep)(left, right, place) }
    }
}

#[cfg(test)]
mod tests;
