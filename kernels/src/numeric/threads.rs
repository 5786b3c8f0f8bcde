//! The thresholds and chunk sizes of parallel loops, for all CPU kernels.

use rayon::prelude::*;

/// Minimum number of elements of a parallel loop: for fewer elements, distributing the loop costs more than it gains.
pub(crate) const PARALLEL: usize = 1 << 18;

/// The number of multiplications and additions from which a matrix product uses several threads.
pub(crate) const PARALLEL_PRODUCT: usize = 25_000_000;

/// Number of elements converted or copied at a time: so few that they stay in the first-level cache.
pub(crate) const BLOCK: usize = 512;

/// Returns whether a loop over `elements` elements should be parallel if the caller holds a variable's lock. On a
/// thread of the pool it should not: a thread that waits for the loop's end may start another work item, which would
/// deadlock on the lock.
pub(crate) fn is_parallel_under_lock(elements: usize) -> bool {
    elements >= PARALLEL && rayon::current_thread_index().is_none()
}

/// The cost of computing an element, which determines the minimum number of elements of a parallel loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// The loop is bound by memory.
    Cheap,
    /// The loop computes a division, a short polynomial, or more per element.
    Expensive,
}

impl Cost {
    pub(crate) fn threshold(self) -> usize {
        match self {
            Cost::Cheap => 4 * PARALLEL,
            Cost::Expensive => PARALLEL,
        }
    }
}

/// Returns the number of elements per work item; all `len` elements if a parallel loop would not be faster.
pub(crate) fn chunk_size(len: usize, cost: Cost) -> usize {
    if len <= cost.threshold() {
        return len.max(1);
    }
    let threads = rayon::current_num_threads();
    if threads == 1 { len } else { len.div_ceil(threads * 2).next_multiple_of(BLOCK) }
}

/// A function that loops over a part of a slice. It is a trait object so that the distribution of parts is compiled
/// once per element type, not once for each of some 1000 callers.
type Work<'w, R> = dyn Fn(usize, &mut [R]) + Sync + 'w;

/// Splits `out` into chunks of `chunk` elements and calls `work` with the index of each chunk's first element and the
/// chunk, in parallel if there is more than one chunk.
pub(crate) fn for_chunks<R: Send>(out: &mut [R], chunk: usize, work: impl Fn(usize, &mut [R]) + Sync) {
    distribute_chunks(out, chunk, &work);
}

fn distribute_chunks<R: Send>(out: &mut [R], chunk: usize, work: &Work<'_, R>) {
    if chunk >= out.len() {
        work(0, out);
    } else {
        in_parallel(out, chunk, &|i, part| work(i * chunk, part));
    }
}

/// Splits `out` into parts of `len` elements and calls `work` with the index of each part and the part, on several
/// threads if `is_parallel`. The last part may be shorter; an empty `out` has no parts.
pub(crate) fn for_parts<R: Send>(
    out: &mut [R],
    len: usize,
    is_parallel: bool,
    work: impl Fn(usize, &mut [R]) + Sync,
) {
    if is_parallel {
        in_parallel(out, len, &work);
    } else {
        out.chunks_mut(len).enumerate().for_each(|(i, part)| work(i, part));
    }
}

/// Splits `out` into parts of `len` elements and calls `work` with the index of each part and the part, on several
/// threads.
fn in_parallel<R: Send>(out: &mut [R], len: usize, work: &Work<'_, R>) {
    out.par_chunks_mut(len).enumerate().for_each(|(i, part)| work(i, part));
}

/// Runs both functions, in parallel if another thread is idle. The functions are passed to rayon as trait objects, so
/// that rayon's code is compiled once, not once per caller.
pub(crate) fn join(left: impl FnOnce() + Send, right: impl FnOnce() + Send) {
    let (mut left, mut right) = (Some(left), Some(right));
    let mut run_left = || left.take().map_or((), |left| left());
    let mut run_right = || right.take().map_or((), |right| right());
    join_dyn(&mut run_left, &mut run_right);
}

fn join_dyn(left: &mut (dyn FnMut() + Send), right: &mut (dyn FnMut() + Send)) {
    rayon::join(left, right);
}

/// Splits `out` into runs of whole rows and calls `work` with the index of each run's first row and the run, in
/// parallel. Runs have at least `PARALLEL / 8` elements, except the last; if `out` has fewer than [`PARALLEL`]
/// elements, it is a single run. `row` is the number of elements per row, not 0.
pub(crate) fn for_rows<R: Send>(out: &mut [R], row: usize, work: impl Fn(usize, &mut [R]) + Sync) {
    distribute_rows(out, row, &work);
}

fn distribute_rows<R: Send>(out: &mut [R], row: usize, work: &Work<'_, R>) {
    let rows = if out.len() < PARALLEL { out.len() / row } else { rows_at_a_time(row) };
    distribute_chunks(out, rows.max(1) * row, &|start, part| work(start / row, part));
}

/// Returns the minimum number of rows per work item if each row has `row` elements.
pub(crate) fn rows_at_a_time(row: usize) -> usize {
    (PARALLEL / 8).div_ceil(row.max(1))
}
