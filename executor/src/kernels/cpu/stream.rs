//! Memory that is passed through once. Results so large that whoever reads them next does not find them in the
//! caches anyway are written past these: the memory behind them is then not read before it is written, which is a
//! third of the traffic of a loop over two tensors. What is read is asked for while what came before is computed.

use graph::Element;

/// Results of so many bytes, and more, that no operand's memory was taken for.
const LARGE: usize = 16 << 20;

/// Whether a result of so many elements is better written past the caches.
pub(super) fn is_worth_it<T>(len: usize) -> bool {
    cfg!(target_arch = "x86_64") && len.saturating_mul(size_of::<T>()) >= LARGE
}

/// Copies `from` to `to`, which is of the same length. Other threads may read it after [`settle`].
pub(super) fn copy<T: Element>(from: &[T], to: &mut [T]) {
    let (from, to): (&[u8], &mut [u8]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
    #[cfg(target_arch = "x86_64")]
    x86::copy(from, to);
    #[cfg(not(target_arch = "x86_64"))]
    to.copy_from_slice(from);
}

/// Asks memory for these elements, which are read soon.
#[inline]
pub(super) fn ask<T: Element>(elements: &[T]) {
    #[cfg(target_arch = "x86_64")]
    x86::ask(bytemuck::cast_slice(elements));
    #[cfg(not(target_arch = "x86_64"))]
    let _ = elements;
}

/// What this thread has copied is there for all who come after.
pub(super) fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::kernels::cpu::cache::LINE;
    use crate::kernels::cpu::simd::{Level, level};
    use std::arch::x86_64::{
        __m128i, __m256i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_stream_si128, _mm256_loadu_si256,
        _mm256_stream_si256,
    };

    /// Bytes of a store: what is not a multiple of it, at both ends, is copied as ever.
    const STEP: usize = 32;

    #[inline]
    pub(super) fn ask(bytes: &[u8]) {
        for line in bytes.chunks(LINE) {
            // SAFETY: every x86-64 processor has SSE.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
    }

    pub(super) fn copy(from: &[u8], to: &mut [u8]) {
        let head = to.as_ptr().align_offset(STEP).min(to.len());
        let body = (to.len() - head) / STEP * STEP;
        let (from_head, from) = from.split_at(head);
        let (to_head, to) = to.split_at_mut(head);
        to_head.copy_from_slice(from_head);
        let (from_body, from_tail) = from.split_at(body);
        let (to_body, to_tail) = to.split_at_mut(body);
        if level() >= Level::V3 {
            // SAFETY: the level says that the processor has AVX; the rest as for `sse2`.
            unsafe { avx(from_body, to_body) };
        } else {
            // SAFETY: `to` begins at a multiple of `STEP`, and both are as long and whole steps.
            unsafe { sse2(from_body, to_body) };
        }
        to_tail.copy_from_slice(from_tail);
    }

    /// # Safety
    /// As of [`sse2`].
    #[target_feature(enable = "avx")]
    unsafe fn avx(from: &[u8], to: &mut [u8]) {
        for (from, to) in from.chunks_exact(STEP).zip(to.chunks_exact_mut(STEP)) {
            // SAFETY: both are `STEP` bytes; `to` is aligned, as the caller promises.
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
            // SAFETY: both are `HALF` bytes; `to` is aligned, as the caller promises.
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

    /// Whatever the places and lengths: whole steps, ends, and neither.
    #[test]
    fn copies_are_equal_and_nothing_else_is_written() {
        let from: Vec<u16> = (0..500).collect();
        for start in 0..40 {
            for len in (0..100).chain([128, 400]) {
                let mut to = vec![u16::MAX; 500];
                copy(&from[start..start + len], &mut to[start + 1..start + 1 + len]);
                settle();
                assert_eq!(to[start + 1..start + 1 + len], from[start..start + len], "{len} from {start}");
                let others = to[..start + 1].iter().chain(&to[start + 1 + len..]);
                assert!(others.into_iter().all(|&v| v == u16::MAX), "{len} from {start}");
            }
        }
    }

    #[test]
    fn small_results_stay_in_the_caches() {
        assert!(!is_worth_it::<f32>(1 << 20));
        assert_eq!(is_worth_it::<f64>(LARGE / 8), cfg!(target_arch = "x86_64"));
    }
}
