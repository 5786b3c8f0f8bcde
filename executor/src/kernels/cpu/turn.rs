//! Matrices turned over, square by square in registers: what lies in rows comes to lie in columns.

#[cfg(target_arch = "x86_64")]
use super::simd::{Level, level};
use std::ops::Range;

/// Rows and columns of what is turned in registers.
const SIDE: usize = 8;

/// Rows and columns of what is turned element by element: two such squares fit the first cache.
const BLOCK: usize = 32;

/// Writes `width` rows of `count` words, `stride` apart, as the columns of `count` rows, `step` apart.
///
/// # Panics
/// If there are fewer words.
pub(super) fn words(from: &[u32], stride: usize, to: &mut [u32], step: usize, [width, count]: [usize; 2]) {
    if width == 0 || count == 0 {
        return;
    }
    assert!((width - 1) * stride + count <= from.len(), "a matrix reaches outside its data");
    assert!((count - 1) * step + width <= to.len(), "a matrix turned over reaches outside its place");
    let (mut columns, mut rows) = (0, 0);
    #[cfg(target_arch = "x86_64")]
    if level() >= Level::V3 {
        (columns, rows) = (width / SIDE * SIDE, count / SIDE * SIDE);
        // SAFETY: the processor has AVX, and all rows and columns were seen to lie inside.
        unsafe { avx::squares(from, stride, to, step, [columns, rows]) };
    }
    part(from, stride, to, step, columns..width, 0..rows);
    part(from, stride, to, step, 0..width, rows..count);
}

/// As [`words`], of any elements.
pub(super) fn elements<E: Clone>(
    from: &[E],
    stride: usize,
    to: &mut [E],
    step: usize,
    [width, count]: [usize; 2],
) {
    part(from, stride, to, step, 0..width, 0..count);
}

/// These columns of these rows.
fn part<E: Clone>(
    from: &[E],
    stride: usize,
    to: &mut [E],
    step: usize,
    columns: Range<usize>,
    rows: Range<usize>,
) {
    for top in rows.clone().step_by(BLOCK) {
        for left in columns.clone().step_by(BLOCK) {
            let width = BLOCK.min(columns.end - left);
            for t in top..rows.end.min(top + BLOCK) {
                let column = from[left * stride + t..].iter().step_by(stride.max(1));
                to[t * step + left..][..width]
                    .iter_mut()
                    .zip(column)
                    .for_each(|(to, from)| to.clone_from(from));
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx {
    use super::SIDE;
    use std::arch::x86_64::*;

    /// Elements of a line of the cache: as many of a row are read at once.
    const LINE: usize = 16;

    /// Lines of a row between asking for one and its use.
    const AHEAD: usize = 2;

    /// # Safety
    /// The processor must have AVX; `width` and `count` must be multiples of [`SIDE`], and their rows and columns must lie
    /// inside `from` and `to`.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn squares(
        from: &[u32],
        stride: usize,
        to: &mut [u32],
        step: usize,
        [width, count]: [usize; 2],
    ) {
        let (from, to) = (from.as_ptr().cast::<f32>(), to.as_mut_ptr().cast::<f32>());
        for line in (0..count).step_by(LINE) {
            for j in (0..width).step_by(SIDE) {
                let ahead = from.wrapping_add(j * stride + line + AHEAD * LINE);
                for i in 0..SIDE {
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(i * stride).cast());
                }
                for t in (line..count.min(line + LINE)).step_by(SIDE) {
                    // SAFETY: the square's rows and columns are among those that lie inside.
                    unsafe { square(from.add(j * stride + t), stride, to.add(t * step + j), step) };
                }
            }
        }
    }

    /// Row `i` becomes column `i`.
    ///
    /// # Safety
    /// [`SIDE`] rows of as many elements must lie inside memory, `stride` apart to be read, `step` apart to be written.
    #[target_feature(enable = "avx")]
    #[inline]
    unsafe fn square(from: *const f32, stride: usize, to: *mut f32, step: usize) {
        const HALF: usize = SIDE / 2;
        // Halves of rows `i` and `i + 4` in one vector: what is left are squares of four by four.
        let half = |i: usize, first: usize| {
            // SAFETY: as the caller promises.
            let [upper, lower] =
                [i, i + HALF].map(|row| unsafe { _mm_loadu_ps(from.add(row * stride + first)) });
            _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(upper), lower)
        };
        for first in [0, HALF] {
            let [a, b, c, d] = [half(0, first), half(1, first), half(2, first), half(3, first)];
            let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
            let (ab_high, cd_high) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
            let rows = [
                _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd),
                _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd),
                _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
                _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
            ];
            for (t, row) in rows.into_iter().enumerate() {
                // SAFETY: as the caller promises.
                unsafe { _mm256_storeu_ps(to.add((first + t) * step), row) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns() {
        for (width, count) in [(0, 3), (3, 0), (1, 1), (8, 8), (7, 40), (40, 7), (24, 16), (65, 50)] {
            let (stride, step) = (count + 3, width + 5);
            let from: Vec<u32> = (0..width * stride).map(|i| i as u32).collect();
            let mut places = [vec![u32::MAX; count * step], vec![u32::MAX; count * step]];
            let [quickly, slowly] = &mut places;
            words(&from, stride, quickly, step, [width, count]);
            elements(&from, stride, slowly, step, [width, count]);
            for to in places {
                for (at, &value) in to.iter().enumerate() {
                    let (t, j) = (at / step, at % step);
                    let expected = if j < width { from[j * stride + t] } else { u32::MAX };
                    assert_eq!(value, expected, "row {t}, column {j} of {count} by {width}");
                }
            }
        }
    }
}
