//! The block computation as a macro, which each instruction set instantiates with its own vector type and operations.

use super::Destination;

/// Defines `block`, which computes up to `MR` rows of `NV` vectors, and `sweep`, which cuts the rows into blocks. For
/// each number of vectors, ascending, `blocks` lists the numbers of rows for which a `block` is compiled, first the
/// number of a full block.
///
/// The accumulators must stay in registers: `MR * NV` of them, plus `NV` registers for the right matrix and one for an
/// element of the left matrix, must not exceed the number of registers. The right matrix is prefetched some steps
/// ahead, because it need not be in the first-level cache, and the destination is prefetched before sums are added to
/// it. Sweeps that prefetch more ([`super::Prefetch`]) use separate instances of `block`, because every instruction
/// between two runs costs time when runs are short.
macro_rules! blocks {
    (
        $(features: $features:literal,)? vector: $V:ty, lanes: $lanes:literal, vectors: $vectors:literal,
        blocks: [$($NV:literal: [$full:literal $(, $rows:literal)*],)*],
        zero: $zero:expr, load: $load:expr, store: $store:expr, splat: $splat:expr, fma: $fma:expr, add: $add:expr,
        prefetch_left: $prefetch_left:expr, prefetch_right: $prefetch_right:expr, prefetch_write: $prefetch_write:expr,
        prefetch_later: $prefetch_later:expr,
    ) => {
        use super::prefetch::{Prefetch, PrefetchCursor};
        use super::{LeftMatrix, Destination, Registers, RightPanel};
        use crate::numeric::cpu_cache::FLOATS_PER_LINE;

        pub(super) static REGISTERS: Registers = Registers { columns: $vectors * $lanes, lanes: $lanes, sweep };

        /// # Safety
        /// The processor must have the features `$features`. `left`, `right` and `destination` must lie inside their
        /// slices, `right` with whole vectors; `destination.width` must be at most the width of the widest block.
        $(#[target_feature(enable = $features)])?
        unsafe fn sweep(left: &LeftMatrix<'_>, right: &RightPanel<'_>, destination: &mut Destination<'_>) {
            // SAFETY: the caller guarantees the conditions.
            unsafe {
                match left.prefetch {
                    Prefetch::Nothing => sweep_blocks::<false>(left, right, destination),
                    Prefetch::Rows | Prefetch::Memory(_) => sweep_blocks::<true>(left, right, destination),
                }
            }
        }

        /// # Safety
        /// Same as for `sweep`.
        $(#[target_feature(enable = $features)])?
        unsafe fn sweep_blocks<const PREFETCHES: bool>(left: &LeftMatrix<'_>, right: &RightPanel<'_>, destination: &mut Destination<'_>) {
            match destination.width.div_ceil($lanes) {
                $(0..=$NV => {
                    let mut cursor = PrefetchCursor::new(left, left.rows.len().div_ceil($full));
                    for rows in super::cut_rows(left.rows.len(), $full) {
                        let (first, count) = (rows.start, rows.len());
                        // SAFETY: the caller guarantees the conditions; at least `count` rows start at `first`.
                        unsafe {
                            match count {
                                $(0..=$rows => block::<$rows, $NV, PREFETCHES>(left, right, destination, first, count, &mut cursor),)*
                                _ => block::<$full, $NV, PREFETCHES>(left, right, destination, first, count, &mut cursor),
                            }
                        }
                    }
                })*
                more => unreachable!("blocks of {more} vectors"),
            }
        }

        /// Computes rows `first..first + count` of the product; `count` is at most `MR`.
        ///
        /// # Safety
        /// Same as for `sweep`; `destination.width` must need exactly `NV` vectors.
        $(#[target_feature(enable = $features)])?
        unsafe fn block<const MR: usize, const NV: usize, const PREFETCHES: bool>(
            left: &LeftMatrix<'_>,
            right: &RightPanel<'_>,
            destination: &mut Destination<'_>,
            first: usize,
            count: usize,
            cursor: &mut PrefetchCursor,
        ) {
            // If `count` is less than `MR`, the missing rows repeat the last row and are not stored.
            let last = first + count - 1;
            let rows: [usize; MR] = super::block::offsets_from(left.rows, first, last);
            let mut next = [0; MR];
            if PREFETCHES {
                next = super::block::offsets_from(left.rows, first + count, left.rows.len() - 1);
            }
            let (left_step, right_step) = (left.step, right.step);
            let mut to = [destination.data.as_mut_ptr(); MR];
            for i in 0..MR {
                to[i] = to[i].wrapping_add(destination.rows[last.min(first + i)]);
                if destination.add {
                    for v in 0..NV {
                        $prefetch_write(to[i].wrapping_add(v * $lanes));
                    }
                }
            }
            let PrefetchCursor { next: mut later, each, pace } = *cursor;
            let prefetches_rows = matches!(left.prefetch, Prefetch::Rows);
            let mut sums = [[$zero; NV]; MR];
            for run in left.runs {
                // SAFETY: the run lies inside both slices for every row. Pointers beyond the run's last step are not
                // read.
                let mut a = left.data.as_ptr().wrapping_add(run.start);
                let mut b = right.data.as_ptr().wrapping_add(run.first * right_step);
                let mut rest = run.len;
                while rest > 0 {
                    let mut steps = rest;
                    if PREFETCHES {
                        steps = rest.min(FLOATS_PER_LINE);
                        if prefetches_rows {
                            for i in 0..MR {
                                $prefetch_left(a.wrapping_add(next[i]));
                            }
                        }
                        for _ in 0..each {
                            $prefetch_later(later);
                            later = later.wrapping_add(pace);
                        }
                    }
                    rest -= steps;
                    for _ in 0..steps {
                        for v in 0..NV {
                            let ahead = super::block::PREFETCH_DISTANCE * right_step + v * $lanes;
                            $prefetch_right(b.wrapping_add(ahead));
                        }
                        let mut columns = [$zero; NV];
                        for v in 0..NV {
                            // SAFETY: the right matrix has whole vectors at each step.
                            columns[v] = unsafe { $load(b.add(v * $lanes)) };
                        }
                        for i in 0..MR {
                            // SAFETY: the left matrix has an element of each row at each step.
                            let element = unsafe { $splat(*a.add(rows[i])) };
                            for v in 0..NV {
                                sums[i][v] = $fma(element, columns[v], sums[i][v]);
                            }
                        }
                        a = a.wrapping_add(left_step);
                        b = b.wrapping_add(right_step);
                    }
                }
            }
            cursor.next = later;
            // The loops index `sums` only by constants, because otherwise the compiler would keep the sums in memory.
            if destination.width < NV * $lanes {
                let mut rows = [[[0f32; $lanes]; NV]; MR];
                for i in 0..MR {
                    for v in 0..NV {
                        // SAFETY: each `rows[i][v]` has room for a vector.
                        unsafe { $store(rows[i][v].as_mut_ptr(), sums[i][v]) };
                    }
                }
                return super::block::store_parts(destination, first, rows[..count].iter().map(|row| row.as_flattened()));
            }
            if destination.add {
                for i in 0..MR {
                    for v in 0..NV {
                        // SAFETY: whole vectors of each row are inside the destination.
                        sums[i][v] = unsafe { $add($load(to[i].add(v * $lanes)), sums[i][v]) };
                    }
                }
            }
            for i in 0..MR {
                if i < count {
                    for v in 0..NV {
                        // SAFETY: `NV` whole vectors of each row are inside the destination.
                        unsafe { $store(to[i].add(v * $lanes), sums[i][v]) };
                    }
                }
            }
        }
    };
}

/// Number of steps between the prefetch of a vector of the right matrix and its use.
pub(super) const PREFETCH_DISTANCE: usize = 8;

/// Returns the offsets of `MR` rows, beginning with row `first`; rows after `last` get the offset of `last`.
#[inline(always)]
pub(super) fn offsets_from<const MR: usize>(offsets: &[usize], first: usize, last: usize) -> [usize; MR] {
    let mut rows = [0; MR];
    for i in 0..MR {
        rows[i] = offsets[last.min(first + i)];
    }
    rows
}

/// Stores the first `destination.width` elements of each row in the destination, or adds them to it; for blocks whose
/// width is not a whole number of vectors.
#[inline(never)]
pub(super) fn store_parts<'a>(
    destination: &mut Destination<'_>,
    first: usize,
    rows: impl Iterator<Item = &'a [f32]>,
) {
    for (&at, row) in destination.rows[first..].iter().zip(rows) {
        for (to, value) in destination.data[at..at + destination.width].iter_mut().zip(row) {
            *to = if destination.add { *to + value } else { *value };
        }
    }
}
