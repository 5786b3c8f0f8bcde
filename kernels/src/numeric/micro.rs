//! The innermost loop of products of `f32` matrices: computes a block of the product as large as the vector registers
//! hold, for the instruction set of the processor. Rows of the left matrix may lie anywhere in memory, so the patches
//! of a convolution are read in place; the right matrix is packed in panels ([`super::panel`]).

#[macro_use]
mod block;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
mod prefetch;

#[cfg(target_arch = "x86_64")]
use super::simd::{Level, level};
pub(crate) use prefetch::{Prefetch, PrefetchQueue};
use std::ops::Range;

/// Maximum number of steps (indices of the inner dimension) per sweep: so many that storing the sums afterwards costs
/// little, and so few that single-precision sums lose about as much accuracy as TensorFlow's.
pub(crate) const STEPS: usize = 512;

/// Returns the offset of the last of `count` items that are `stride` apart; 0 if `count` is 0.
pub(crate) fn extent(count: usize, stride: usize) -> usize {
    count.saturating_sub(1).saturating_mul(stride)
}

/// Cuts `len` into ranges of about equal length, each at most `most` long.
pub(crate) fn cut(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let each = len.div_ceil(len.div_ceil(most).max(1)).max(1);
    (0..len).step_by(each).map(move |first| first..len.min(first + each))
}

/// Cuts `len` rows (at least one) into blocks of `most` rows. If the last block would have less than half of `most`,
/// the last two blocks get about equal numbers of rows, because a small block mostly waits for loads of the right
/// matrix.
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

/// A run of consecutive steps (indices of the inner dimension) in the left and the right matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepRun {
    /// Offset of the first step in the left matrix, relative to the start of a row.
    pub(crate) start: usize,
    /// Row of the right matrix that belongs to the first step.
    pub(crate) first: usize,
    pub(crate) len: usize,
}

/// The left matrix: element (row `i`, step `t` of run `r`) is at `rows[i] + r.start + t * step`, and is multiplied
/// with row `r.first + t` of the right matrix. Steps that are in no run add nothing, for example steps over the zero
/// padding of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftMatrix<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) rows: &'a [usize],
    pub(crate) runs: &'a [StepRun],
    pub(crate) step: usize,
    pub(crate) prefetch: Prefetch<'a>,
}

/// A panel of columns of the right matrix: row `t` starts at `t * step`. Rows are stored with the panel's width rounded
/// up by [`Registers::whole_vectors`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct RightPanel<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) step: usize,
}

/// The destination of a product: element (row `i`, column `j`) is at `rows[i] + j`.
#[derive(Debug)]
pub(crate) struct Destination<'a> {
    pub(crate) data: &'a mut [f32],
    pub(crate) rows: &'a [usize],
    pub(crate) width: usize,
    /// True if the product is added to the destination's elements.
    pub(crate) add: bool,
}

/// The block sizes of an instruction set, and its function that computes blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers {
    /// Number of columns of the widest block, and so of the widest panel.
    pub(crate) columns: usize,
    /// Number of elements of a vector.
    pub(crate) lanes: usize,
    sweep: unsafe fn(&LeftMatrix<'_>, &RightPanel<'_>, &mut Destination<'_>),
}

impl Registers {
    /// Returns the block sizes and function for the processor's best instruction set.
    pub(crate) fn get() -> &'static Registers {
        #[cfg(target_arch = "x86_64")]
        match level() {
            Level::V4 => return &avx512::REGISTERS,
            Level::V3 => return &avx2::REGISTERS,
            Level::Baseline => {}
        }
        &portable::REGISTERS
    }

    /// Returns the block sizes and functions for all instruction sets that the processor supports, the best first; for
    /// tests.
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

    /// Returns `width` rounded up to whole vectors: the number of columns that a sweep computes for `width` columns.
    pub(crate) fn whole_vectors(&self, width: usize) -> usize {
        width.next_multiple_of(self.lanes)
    }

    /// Cuts `width` columns into the fewest possible panels, with about equally many vectors each.
    pub(crate) fn panels(&self, width: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (count, vectors) = (width.div_ceil(self.columns), width.div_ceil(self.lanes));
        let lanes = self.lanes;
        // If the vectors do not divide evenly among the panels, the first panels have one vector more.
        let start = move |i: usize| (i * (vectors / count) + i.min(vectors % count)) * lanes;
        (0..count).map(move |i| start(i)..start(i + 1).min(width))
    }

    /// Computes `destination = left * right`, or `destination += left * right`, over all rows and at most
    /// [`Registers::columns`] columns. The products of each element are added in the order of the steps, regardless of
    /// the other rows of the sweep.
    ///
    /// # Panics
    /// If a row, run or column reaches outside its slice.
    pub(crate) fn sweep(
        &self,
        left: &LeftMatrix<'_>,
        right: &RightPanel<'_>,
        destination: &mut Destination<'_>,
    ) {
        assert_eq!(left.rows.len(), destination.rows.len(), "rows of a product that do not fit");
        assert!(
            0 < destination.width && destination.width <= self.columns,
            "a panel of {} columns",
            destination.width
        );
        let (Some(last_left), Some(last_destination)) =
            (left.rows.iter().max(), destination.rows.iter().max())
        else {
            return;
        };
        for run in left.runs.iter().filter(|run| run.len > 0) {
            let reached = last_left.saturating_add(run.start).saturating_add(extent(run.len, left.step));
            assert!(reached < left.data.len(), "a left matrix reaches outside its data");
            let last = extent(run.first.saturating_add(run.len), right.step);
            let end = last.saturating_add(self.whole_vectors(destination.width));
            assert!(end <= right.data.len(), "a right matrix reaches outside its data");
        }
        assert!(
            last_destination.saturating_add(destination.width) <= destination.data.len(),
            "a product reaches outside its destination"
        );
        // SAFETY: the checks above show that every element that the rows, runs, steps and columns access is inside its
        // slice, and `get` returns functions whose instructions the processor supports.
        unsafe { (self.sweep)(left, right, destination) }
    }
}

#[cfg(test)]
mod tests;
