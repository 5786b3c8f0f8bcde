//! Loops over matrices with one row per pixel and one column per channel. The results do not depend on the number of
//! threads.

use crate::numeric::simd::{Vector, vectorized};
use crate::numeric::threads::{PARALLEL, for_rows};
use num_traits::{AsPrimitive, Float};
use rayon::prelude::*;

/// Rows of one work item of the thread pool.
const ROWS: usize = 256;

/// Rows that are summed in the elements' type before the partial sum is added in `f64`: the terms have either sign,
/// so the sum of many is small and its rounding error would show.
const FEW: usize = 32;

/// Returns, for each channel, the sum over all rows of the terms that `add(row number, row, sums)` adds. `channels`
/// is not 0.
pub(super) fn sums<W: Float + AsPrimitive<f64> + Send + Sync>(
    values: &[W],
    channels: usize,
    add: impl Fn(usize, &[W], &mut [W]) + Sync,
) -> Vec<W>
where
    f64: AsPrimitive<W>,
{
    let part = |(i, rows): (usize, &[W])| {
        let (mut part, mut few) = (vec![0f64; channels], vec![W::zero(); channels]);
        for (j, rows) in rows.chunks(FEW * channels).enumerate() {
            few.fill(W::zero());
            let work = |k: usize, row: &[W]| add(i * ROWS + j * FEW + k, row, &mut few);
            vectorized(EachRow { rows: rows.chunks_exact(channels), work });
            part.iter_mut().zip(&few).for_each(|(p, f)| *p += f.as_());
        }
        part
    };
    let parts: Vec<Vec<f64>> = if values.len() < PARALLEL {
        values.chunks(ROWS * channels).enumerate().map(part).collect()
    } else {
        values.par_chunks(ROWS * channels).enumerate().map(part).collect()
    };
    let mut total = vec![0f64; channels];
    for part in parts {
        total.iter_mut().zip(part).for_each(|(t, p)| *t += p);
    }
    total.into_iter().map(AsPrimitive::as_).collect()
}

/// Calls `work(row number, row)` for each row. `channels` is not 0.
pub(super) fn each_row<W: Send>(out: &mut [W], channels: usize, work: impl Fn(usize, &mut [W]) + Sync) {
    for_rows(out, channels, |first, rows| {
        let work = |i: usize, row: &mut [W]| work(first + i, row);
        vectorized(EachRow { rows: rows.chunks_exact_mut(channels), work });
    });
}

/// A loop over rows, compiled for the processor's vector instructions.
struct EachRow<I, F> {
    rows: I,
    work: F,
}

impl<I: Iterator, F: FnMut(usize, I::Item)> Vector for EachRow<I, F> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let EachRow { rows, mut work } = self;
        for (i, row) in rows.enumerate() {
            work(i, row);
        }
    }
}
