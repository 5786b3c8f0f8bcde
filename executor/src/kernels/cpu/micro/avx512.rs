//! Blocks of 14 rows and 32 columns: 28 of 32 registers hold sums.

use std::arch::x86_64::*;

blocks! {
    features: "avx512f,fma", vector: __m512, lanes: 16, rows: [14, 1, 2, 4, 6, 8, 10, 12],
    zero: _mm512_setzero_ps(), load: _mm512_loadu_ps, store: _mm512_storeu_ps,
    splat: |x| _mm512_set1_ps(x), fma: _mm512_fmadd_ps, add: _mm512_add_ps,
}
