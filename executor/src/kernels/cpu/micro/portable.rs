//! Blocks of 4 rows and 8 columns in vectors of 4, which every processor has.

type Four = [f32; 4];

/// # Safety
/// There must be four elements behind `from`.
#[inline(always)]
unsafe fn load(from: *const f32) -> Four {
    // SAFETY: as the caller promises; arrays need no further alignment.
    unsafe { from.cast::<Four>().read() }
}

/// # Safety
/// There must be room for four elements behind `to`.
#[inline(always)]
unsafe fn store(to: *mut f32, values: Four) {
    // SAFETY: as the caller promises.
    unsafe { to.cast::<Four>().write(values) }
}

#[inline(always)]
fn add(x: Four, y: Four) -> Four {
    std::array::from_fn(|i| x[i] + y[i])
}

/// Rounded twice, where processors of other instruction sets round once.
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
