//! AVX-512: blocks of 6 rows and 64 columns, so that 24 of the 32 registers hold sums and each loaded value is used
//! four or six times per step.

use std::arch::x86_64::*;

blocks! {
    features: "avx512f,fma", vector: __m512, lanes: 16, vectors: 4,
    blocks: [1: [14, 1, 2, 4, 6, 8, 10, 12], 2: [14, 1, 2, 4, 6, 8, 10, 12], 3: [9, 1, 2, 3, 5, 7], 4: [6, 1, 2, 3, 4, 5],],
    zero: _mm512_setzero_ps(), load: _mm512_loadu_ps, store: _mm512_storeu_ps,
    splat: |x| _mm512_set1_ps(x), fma: _mm512_fmadd_ps, add: _mm512_add_ps,
    prefetch_left: |at: *const f32| _mm_prefetch::<_MM_HINT_T0>(at.cast()),
    prefetch_right: |at: *const f32| _mm_prefetch::<_MM_HINT_T0>(at.cast()),
    prefetch_write: |at: *mut f32| _mm_prefetch::<_MM_HINT_ET0>(at.cast()),
    prefetch_later: |at: *const f32| _mm_prefetch::<_MM_HINT_T1>(at.cast()),
}
