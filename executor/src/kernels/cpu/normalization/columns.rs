//! Loops over matrices with a row a pixel and a column a channel. What they give does not depend on the number of
//! threads.

use crate::kernels::cpu::simd::{Vector, vectorized};
use crate::kernels::cpu::threads::{PARALLEL, for_rows};
use num_traits::{AsPrimitive, Float};
use rayon::prelude::*;

/// Rows of a thread's part.
const ROWS: usize = 256;

/// Rows whose sums are taken in the elements' type, before they are added in `f64`: what is added is of either sign, and
/// what is left of many is small.
const FEW: usize = 32;

/// Adds up, for each channel, what `add(row number, row, sums)` adds for each row. `channels` is not 0.
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

/// A loop over rows.
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
