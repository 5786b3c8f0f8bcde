//! Portable code: blocks of 4 rows and 8 columns in arrays of 4 elements, for every processor.

type Four = [f32; 4];

/// # Safety
/// Four elements must be readable at `from`.
#[inline(always)]
unsafe fn load(from: *const f32) -> Four {
    // SAFETY: the caller guarantees the conditions; arrays of `f32` need no further alignment.
    unsafe { from.cast::<Four>().read() }
}

/// # Safety
/// Four elements must be writable at `to`.
#[inline(always)]
unsafe fn store(to: *mut f32, values: Four) {
    // SAFETY: the caller guarantees the conditions.
    unsafe { to.cast::<Four>().write(values) }
}

#[inline(always)]
fn add(x: Four, y: Four) -> Four {
    std::array::from_fn(|i| x[i] + y[i])
}

/// Multiplies and adds with two roundings; other instruction sets have fused instructions, which round once.
#[inline(always)]
fn multiply_add(x: Four, y: Four, sum: Four) -> Four {
    std::array::from_fn(|i| x[i] * y[i] + sum[i])
}

blocks! {
    vector: Four, lanes: 4, vectors: 2, blocks: [1: [4, 1, 2], 2: [4, 1, 2],],
    zero: [0f32; 4], load: load, store: store, splat: |x| [x; 4], fma: multiply_add, add: add,
    prefetch_left: |_| {}, prefetch_right: |_| {}, prefetch_write: |_| {},
    prefetch_later: |_| {},
}
