//! Loops that access each byte of memory once. Results too large to stay in the caches are written with non-temporal
//! stores, which do not read the destination first; that saves a third of the memory traffic of a loop over two
//! tensors. Inputs are prefetched while earlier elements are computed.

use graph::Element;

/// The least size in bytes of a result that bypasses the caches, if the result does not reuse an operand's memory.
const LARGE: usize = 16 << 20;

/// Returns whether a new result of `len` elements should be written with stores that bypass the caches.
pub(crate) fn should_bypass_caches<T>(len: usize) -> bool {
    cfg!(target_arch = "x86_64") && len.saturating_mul(size_of::<T>()) >= LARGE
}

/// Copies `from` to `to`, which has the same length. Other threads may read `to` only after this thread has called
/// [`store_fence`].
pub(crate) fn copy<T: Element>(from: &[T], to: &mut [T]) {
    let (from, to): (&[u8], &mut [u8]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
    #[cfg(target_arch = "x86_64")]
    x86::copy(from, to);
    #[cfg(not(target_arch = "x86_64"))]
    to.copy_from_slice(from);
}

/// Prefetches the cache lines of `elements`, which the caller reads soon.
#[inline]
pub(crate) fn prefetch<T: Element>(elements: &[T]) {
    #[cfg(target_arch = "x86_64")]
    x86::prefetch(bytemuck::cast_slice(elements));
    #[cfg(not(target_arch = "x86_64"))]
    let _ = elements;
}

/// Orders the calling thread's calls of [`copy`] before its later stores, so that threads that synchronise with it read
/// the copied elements.
pub(crate) fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::numeric::cpu_cache::LINE;
    use crate::numeric::simd::{Level, level};
    use std::arch::x86_64::{
        __m128i, __m256i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_stream_si128, _mm256_loadu_si256,
        _mm256_stream_si256,
    };

    /// Bytes per store; the unaligned remainders at both ends are copied normally.
    const STEP: usize = 32;

    #[inline]
    pub(crate) fn prefetch(bytes: &[u8]) {
        for line in bytes.chunks(LINE) {
            // SAFETY: every x86-64 processor has SSE.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
    }

    pub(crate) fn copy(from: &[u8], to: &mut [u8]) {
        let head = to.as_ptr().align_offset(STEP).min(to.len());
        let body = (to.len() - head) / STEP * STEP;
        let (from_head, from) = from.split_at(head);
        let (to_head, to) = to.split_at_mut(head);
        to_head.copy_from_slice(from_head);
        let (from_body, from_tail) = from.split_at(body);
        let (to_body, to_tail) = to.split_at_mut(body);
        if level() >= Level::V3 {
            // SAFETY: the processor has AVX, because its level is at least V3. `to` begins at a multiple of `STEP`, and
            // both slices are equally long and whole steps.
            unsafe { avx(from_body, to_body) };
        } else {
            // SAFETY: `to` begins at a multiple of `STEP`, and both slices are equally long and whole steps.
            unsafe { sse2(from_body, to_body) };
        }
        to_tail.copy_from_slice(from_tail);
    }

    /// # Safety
    /// `to` must begin at a multiple of [`STEP`], and the processor must have AVX.
    #[target_feature(enable = "avx")]
    unsafe fn avx(from: &[u8], to: &mut [u8]) {
        for (from, to) in from.chunks_exact(STEP).zip(to.chunks_exact_mut(STEP)) {
            // SAFETY: both slices are `STEP` bytes; the caller guarantees that `to` is aligned.
            unsafe {
                let vector = _mm256_loadu_si256(from.as_ptr().cast::<__m256i>());
                _mm256_stream_si256(to.as_mut_ptr().cast::<__m256i>(), vector);
            }
        }
    }

    /// # Safety
    /// `to` must begin at a multiple of [`STEP`].
    unsafe fn sse2(from: &[u8], to: &mut [u8]) {
        const HALF: usize = STEP / 2;
        for (from, to) in from.chunks_exact(HALF).zip(to.chunks_exact_mut(HALF)) {
            // SAFETY: both slices are `HALF` bytes; the caller guarantees that `to` is aligned.
            unsafe {
                let vector = _mm_loadu_si128(from.as_ptr().cast::<__m128i>());
                _mm_stream_si128(to.as_mut_ptr().cast::<__m128i>(), vector);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies slices of all alignments and lengths: whole steps, unaligned ends, and slices shorter than a step.
    #[test]
    fn copies_are_equal_and_nothing_else_is_written() {
        let from: Vec<u16> = (0..500).collect();
        for start in 0..40 {
            for len in (0..100).chain([128, 400]) {
                let mut to = vec![u16::MAX; 500];
                copy(&from[start..start + len], &mut to[start + 1..start + 1 + len]);
                store_fence();
                assert_eq!(to[start + 1..start + 1 + len], from[start..start + len], "{len} from {start}");
                let others = to[..start + 1].iter().chain(&to[start + 1 + len..]);
                assert!(others.into_iter().all(|&v| v == u16::MAX), "{len} from {start}");
            }
        }
    }

    #[test]
    fn small_results_stay_in_the_caches() {
        assert!(!should_bypass_caches::<f32>(1 << 20));
        assert_eq!(should_bypass_caches::<f64>(LARGE / 8), cfg!(target_arch = "x86_64"));
    }
}
