//! Loops over matrices with one row per pixel and one column per channel. The results do not depend on the number of
//! threads.

use crate::numeric::simd::{Vector, vectorized};
use crate::numeric::threads::{PARALLEL, for_parts, for_rows};
use num_traits::{AsPrimitive, Float};

/// The number of rows of one work item of the thread pool.
const ROWS: usize = 256;

/// The number of rows that are summed in the elements' type before the partial sum is added to an `f64` sum. The number
/// is small, because terms of opposite sign may cancel, so that the rounding errors of a long sum are large relative to
/// the sum.
const FEW: usize = 32;

/// Returns, for each channel, the sum over all rows of the terms that `add(row index, row, sums)` adds to `sums`.
/// `channels` is not 0.
pub(super) fn sums<W: Float + AsPrimitive<f64> + Send + Sync>(
    values: &[W],
    channels: usize,
    add: impl Fn(usize, &[W], &mut [W]) + Sync,
) -> Vec<W>
where
    f64: AsPrimitive<W>,
{
    sums_of_runs(values, channels, &|first, rows, sums| {
        let work = |i: usize, row: &[W]| add(first + i, row, sums);
        vectorized(EachRow { rows: rows.chunks_exact(channels), work });
    })
}

/// A function `(index of the first row, rows, sums)` that adds the terms of consecutive rows to `sums`.
type AddRows<'a, W> = dyn Fn(usize, &[W], &mut [W]) + Sync + 'a;

/// Returns the sums of all rows, like [`sums`]; `add(index of the first row, rows, sums)` adds the terms of several
/// rows.
fn sums_of_runs<W: Float + AsPrimitive<f64> + Send + Sync>(
    values: &[W],
    channels: usize,
    add: &AddRows<'_, W>,
) -> Vec<W>
where
    f64: AsPrimitive<W>,
{
    let item = ROWS * channels;
    let mut parts = vec![0f64; values.len().div_ceil(item) * channels];
    for_parts(&mut parts, channels, values.len() >= PARALLEL, |i, part| {
        let mut few = vec![W::zero(); channels];
        let rows = &values[i * item..values.len().min((i + 1) * item)];
        for (j, rows) in rows.chunks(FEW * channels).enumerate() {
            few.fill(W::zero());
            add(i * ROWS + j * FEW, rows, &mut few);
            part.iter_mut().zip(&few).for_each(|(p, f)| *p += f.as_());
        }
    });
    let mut total = vec![0f64; channels];
    for part in parts.chunks_exact(channels) {
        total.iter_mut().zip(part).for_each(|(t, p)| *t += p);
    }
    total.into_iter().map(AsPrimitive::as_).collect()
}

/// Calls `work(row index, row)` for each row. `channels` is not 0.
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
