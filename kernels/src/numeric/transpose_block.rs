//! Transposition of matrices, in square blocks that fit registers.

#[cfg(target_arch = "x86_64")]
use super::simd::{Level, level};
use std::ops::Range;

/// Rows and columns of a block that is transposed in registers.
const SIDE: usize = 8;

/// Number of rows and columns of a block that is transposed element by element: two blocks of this size fit the
/// first-level cache.
const BLOCK: usize = 32;

/// Transposes 32-bit words: rows whose starts are `stride` apart become columns whose elements are `step` apart.
///
/// # Panics
/// If a slice is too short for these rows and columns.
pub(crate) fn words(from: &[u32], stride: usize, to: &mut [u32], step: usize, [rows, columns]: [usize; 2]) {
    check([from.len(), to.len()], [stride, step], [rows, columns]);
    let (mut whole_rows, mut whole_columns) = (0, 0);
    #[cfg(target_arch = "x86_64")]
    if level() >= Level::V3 {
        (whole_rows, whole_columns) = (rows / SIDE * SIDE, columns / SIDE * SIDE);
        // SAFETY: the processor has AVX, and `check` has shown that all rows and columns lie inside the slices.
        unsafe { avx::squares(from, stride, to, step, [whole_rows, whole_columns]) };
    }
    part(from, stride, to, step, whole_rows..rows, 0..whole_columns);
    part(from, stride, to, step, 0..rows, whole_columns..columns);
}

/// Transposes a matrix like [`words`], for elements of any type.
pub(crate) fn elements<E: Clone>(
    from: &[E],
    stride: usize,
    to: &mut [E],
    step: usize,
    [rows, columns]: [usize; 2],
) {
    check([from.len(), to.len()], [stride, step], [rows, columns]);
    part(from, stride, to, step, 0..rows, 0..columns);
}

/// Asserts that a matrix and its transpose lie inside slices of lengths `from` and `to`.
fn check([from, to]: [usize; 2], [stride, step]: [usize; 2], [rows, columns]: [usize; 2]) {
    if rows == 0 || columns == 0 {
        return;
    }
    let end = |lines: usize, apart: usize, len: usize| (lines - 1).saturating_mul(apart).saturating_add(len);
    assert!(end(rows, stride, columns) <= from, "a matrix reaches outside its data");
    assert!(end(columns, step, rows) <= to, "a transposed matrix reaches outside its destination");
}

/// Transposes the part of a matrix in the given rows and columns, element by element.
fn part<E: Clone>(
    from: &[E],
    stride: usize,
    to: &mut [E],
    step: usize,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    for left in columns.clone().step_by(BLOCK) {
        for top in rows.clone().step_by(BLOCK) {
            let bottom = rows.end.min(top + BLOCK);
            for column in left..columns.end.min(left + BLOCK) {
                for (row, to) in (top..bottom).zip(&mut to[column * step + top..]) {
                    to.clone_from(&from[row * stride + column]);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx {
    use super::SIDE;
    use crate::numeric::cpu_cache::FLOATS_PER_LINE;
    use std::arch::x86_64::*;

    /// Number of columns transposed at a time: so few that the rows of two blocks stay in the first-level cache even if
    /// they fall into the same sets.
    const WIDTH: usize = 4 * FLOATS_PER_LINE;

    /// # Safety
    /// The processor must have AVX; the numbers of rows and columns must be multiples of [`SIDE`], and they must lie
    /// inside `from` and, transposed, inside `to`.
    #[target_feature(enable = "avx")]
    pub(crate) unsafe fn squares(
        from: &[u32],
        stride: usize,
        to: &mut [u32],
        step: usize,
        [rows, columns]: [usize; 2],
    ) {
        let (from, to) = (from.as_ptr().cast::<f32>(), to.as_mut_ptr().cast::<f32>());
        // Each pass of this loop transposes a few cache lines of each row, and prefetches the same columns of the next
        // rows.
        for left in (0..columns).step_by(WIDTH) {
            let right = columns.min(left + WIDTH);
            for row in (0..rows).step_by(SIDE) {
                let ahead = from.wrapping_add((row + SIDE) * stride);
                for column in (left..right).step_by(SIDE) {
                    if column.is_multiple_of(FLOATS_PER_LINE) {
                        for i in 0..SIDE {
                            _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(i * stride + column).cast());
                        }
                    }
                    // SAFETY: the block is part of the matrix, which lies inside `from` and, transposed, inside `to`.
                    unsafe {
                        square(from.add(row * stride + column), stride, to.add(column * step + row), step)
                    };
                }
            }
        }
    }

    /// Transposes one block: row `i` becomes column `i`.
    ///
    /// # Safety
    /// [`SIDE`] rows of [`SIDE`] elements must be readable at `from`, `stride` apart, and writable at `to`, `step`
    /// apart.
    #[target_feature(enable = "avx")]
    #[inline]
    unsafe fn square(from: *const f32, stride: usize, to: *mut f32, step: usize) {
        const HALF: usize = SIDE / 2;
        // Each vector holds a half of row `i` and a half of row `i + 4`, so that blocks of four by four remain to be
        // transposed.
        let half = |i: usize, first: usize| {
            // SAFETY: the caller guarantees the conditions.
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
                // SAFETY: the caller guarantees the conditions.
                unsafe { _mm256_storeu_ps(to.add((first + t) * step), row) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(len: usize) -> Vec<u32> {
        (0..len).map(|i| i as u32).collect()
    }

    #[test]
    fn rows_become_columns() {
        for (rows, columns) in [(0, 3), (3, 0), (1, 1), (8, 8), (7, 40), (40, 7), (24, 16), (65, 50)] {
            let (stride, step) = (columns + 3, rows + 5);
            let from = numbers(rows * stride);
            let mut places = [vec![u32::MAX; columns * step], vec![u32::MAX; columns * step]];
            let [quickly, slowly] = &mut places;
            words(&from, stride, quickly, step, [rows, columns]);
            elements(&from, stride, slowly, step, [rows, columns]);
            for to in places {
                for (at, &value) in to.iter().enumerate() {
                    let (column, row) = (at / step, at % step);
                    let expected = if row < rows { from[row * stride + column] } else { u32::MAX };
                    assert_eq!(value, expected, "row {row}, column {column} of {rows} by {columns}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside its data")]
    fn rows_outside_the_source_are_refused() {
        words(&numbers(63), 8, &mut [0; 64], 8, [8, 8]);
    }

    #[test]
    #[should_panic(expected = "outside its destination")]
    fn columns_outside_the_destination_are_refused() {
        words(&numbers(64), 8, &mut [0; 64], usize::MAX, [8, 8]);
    }
}
