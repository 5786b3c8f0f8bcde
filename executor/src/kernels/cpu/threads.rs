//! From which size on a loop is shared among threads, and how it is cut: the one place where kernels look.

use rayon::prelude::*;

/// Loops over fewer elements than this stay on their thread: handing out costs more than it gains.
pub(super) const PARALLEL: usize = 1 << 18;

/// Multiplications and additions from which on threads share a product of matrices.
pub(super) const PARALLEL_PRODUCT: usize = 25_000_000;

/// Elements converted or copied at a time: they stay in the first cache.
pub(super) const BLOCK: usize = 512;

/// Whether a loop over `elements` that runs under a lock is worth sharing. Not on a thread of the pool itself:
/// while it waits for the others it may begin another task, which must not find it holding a variable's lock.
pub(super) fn is_parallel_under_lock(elements: usize) -> bool {
    elements >= PARALLEL && rayon::current_thread_index().is_none()
}

/// How much an element costs: it decides from which size on threads help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    /// Memory is the limit.
    Cheap,
    /// A division or a short polynomial and more.
    Dear,
}

impl Cost {
    pub(super) fn threshold(self) -> usize {
        match self {
            Cost::Cheap => 4 * PARALLEL,
            Cost::Dear => PARALLEL,
        }
    }
}

/// How many elements a thread takes; all where splitting does not pay.
pub(super) fn chunk_size(len: usize, cost: Cost) -> usize {
    if len <= cost.threshold() {
        return len.max(1);
    }
    let threads = rayon::current_num_threads();
    if threads == 1 { len } else { len.div_ceil(threads * 2).next_multiple_of(BLOCK) }
}

/// Calls `work` with each chunk and the position of its first element, on several threads if there are several.
pub(super) fn for_chunks<R: Send>(out: &mut [R], chunk: usize, work: impl Fn(usize, &mut [R]) + Sync) {
    if chunk >= out.len() {
        work(0, out);
    } else {
        out.par_chunks_mut(chunk).enumerate().for_each(|(i, part)| work(i * chunk, part));
    }
}

/// Calls `work` with each run of at least `PARALLEL / 8` elements that consists of whole rows of `row` elements,
/// and with the number of its first row; on one thread if there are few elements in all. `row` is not 0.
pub(super) fn for_rows<R: Send>(out: &mut [R], row: usize, work: impl Fn(usize, &mut [R]) + Sync) {
    let rows = if out.len() < PARALLEL { out.len() / row } else { rows_at_a_time(row) };
    for_chunks(out, rows.max(1) * row, |start, part| work(start / row, part));
}

/// Rows of `row` elements that go to a thread at a time, at least.
pub(super) fn rows_at_a_time(row: usize) -> usize {
    (PARALLEL / 8).div_ceil(row.max(1))
}
