//! AVX2: blocks of 6 rows and 16 columns, so that 12 of the 16 registers hold sums. Prefetching the right matrix
//! gains nothing at this vector size.

use std::arch::x86_64::*;

blocks! {
    features: "avx2,fma", vector: __m256, lanes: 8, vectors: 2,
    blocks: [1: [6, 1, 2, 4], 2: [6, 1, 2, 4],],
    zero: _mm256_setzero_ps(), load: _mm256_loadu_ps, store: _mm256_storeu_ps,
    splat: |x| _mm256_set1_ps(x), fma: _mm256_fmadd_ps, add: _mm256_add_ps,
    prefetch_left: |at: *const f32| _mm_prefetch::<_MM_HINT_T0>(at.cast()),
    prefetch_right: |_| {}, prefetch_write: |at: *mut f32| _mm_prefetch::<_MM_HINT_T0>(at.cast()),
    prefetch_later: |at: *const f32| _mm_prefetch::<_MM_HINT_T1>(at.cast()),
}
