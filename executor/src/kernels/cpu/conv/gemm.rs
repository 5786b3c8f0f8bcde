//! Products of strided matrices, behind a safe interface.

use gemm::Parallelism;
use graph::Element;

/// A view of a matrix: element (i, j) is at `i * row_stride + j * column_stride`.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    pub(super) data: &'a [T],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// Columns of a row-major matrix that start with the first of `data`.
    pub(super) fn new(data: &'a [T], rows: usize, columns: usize, row_stride: usize) -> Matrix<'a, T> {
        Matrix { data, rows, columns, row_stride, column_stride: 1 }
    }

    pub(super) fn transposed(self) -> Matrix<'a, T> {
        Matrix {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    fn check(&self) {
        let end = extent(self.rows, self.row_stride).saturating_add(extent(self.columns, self.column_stride));
        let fits = self.rows == 0 || self.columns == 0 || end < self.data.len();
        assert!(fits, "a matrix view reaches outside its data");
    }
}

/// Where the last of `count` begins.
fn extent(count: usize, stride: usize) -> usize {
    count.saturating_sub(1).saturating_mul(stride)
}

/// An element type that there are matrix products of.
pub(super) trait Product: Element + Default {
    /// `out = a * b`, or `out += a * b`; `out` is row-major, its rows `stride` apart.
    fn product(
        out: &mut [Self],
        stride: usize,
        a: Matrix<'_, Self>,
        b: Matrix<'_, Self>,
        accumulate: bool,
        threads: Threads,
    );
    fn plus(self, other: Self) -> Self;
}

/// Whether a product may be handed out to several threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Threads {
    One,
    All,
}

/// The conditions under which every element of a product is inside its slice.
fn check<T>(out: &[T], stride: usize, a: &Matrix<'_, T>, b: &Matrix<'_, T>) {
    a.check();
    b.check();
    assert_eq!(a.columns, b.rows, "a product of matrices that do not fit");
    let end = extent(a.rows, stride).saturating_add(b.columns);
    assert!(a.rows == 0 || b.columns == 0 || end <= out.len(), "a product is larger than its place");
    assert!(a.rows < 2 || stride >= b.columns, "rows of a product overlap");
}

macro_rules! floats {
    ($($t:ty),*) => {
        $(impl Product for $t {
            fn product(
                out: &mut [$t],
                stride: usize,
                a: Matrix<'_, $t>,
                b: Matrix<'_, $t>,
                accumulate: bool,
                threads: Threads,
            ) {
                check(out, stride, &a, &b);
                let parallelism = match threads {
                    Threads::One => Parallelism::None,
                    Threads::All => Parallelism::Rayon(0),
                };
                // SAFETY: `check` saw that every element that the strides reach is inside its slice, and that
                // no two elements of `out` are one; lengths of slices fit isize.
                unsafe {
                    gemm::gemm(
                        a.rows,
                        b.columns,
                        a.columns,
                        out.as_mut_ptr(),
                        1,
                        stride as isize,
                        accumulate,
                        a.data.as_ptr(),
                        a.column_stride as isize,
                        a.row_stride as isize,
                        b.data.as_ptr(),
                        b.column_stride as isize,
                        b.row_stride as isize,
                        1.0,
                        1.0,
                        false,
                        false,
                        false,
                        parallelism,
                    );
                }
            }
            fn plus(self, other: $t) -> $t {
                self + other
            }
        })*
    };
}

floats!(f32, f64);

impl Product for i32 {
    fn product(
        out: &mut [i32],
        stride: usize,
        a: Matrix<'_, i32>,
        b: Matrix<'_, i32>,
        accumulate: bool,
        _: Threads,
    ) {
        check(out, stride, &a, &b);
        for i in 0..a.rows {
            let row = &mut out[i * stride..i * stride + b.columns];
            if !accumulate {
                row.fill(0);
            }
            for k in 0..a.columns {
                let factor = a.data[i * a.row_stride + k * a.column_stride];
                for (j, o) in row.iter_mut().enumerate() {
                    let value = b.data[k * b.row_stride + j * b.column_stride];
                    *o = o.wrapping_add(factor.wrapping_mul(value));
                }
            }
        }
    }

    fn plus(self, other: i32) -> i32 {
        self.wrapping_add(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_and_accumulation() {
        let a: Vec<i32> = (1..13).collect();
        let b: Vec<i32> = (1..9).collect();
        let float = |v: &[i32]| v.iter().map(|&x| x as f32).collect::<Vec<_>>();
        // Two columns of a 4 x 3 matrix, transposed, times a 4 x 2 matrix.
        let mut exact = [1; 5];
        let (fa, fb, mut real) = (float(&a), float(&b), [1f32; 5]);
        i32::product(
            &mut exact,
            3,
            Matrix::new(&a[1..], 4, 2, 3).transposed(),
            Matrix::new(&b, 4, 2, 2),
            true,
            Threads::One,
        );
        f32::product(
            &mut real,
            3,
            Matrix::new(&fa[1..], 4, 2, 3).transposed(),
            Matrix::new(&fb, 4, 2, 2),
            true,
            Threads::All,
        );
        assert_eq!(exact, [135, 161, 1, 151, 181]);
        assert_eq!(float(&exact), real);
    }

    #[test]
    #[should_panic(expected = "outside its data")]
    fn views_outside_are_refused() {
        let mut out = [0f32; 4];
        f32::product(
            &mut out,
            2,
            Matrix::new(&[0.0; 4], 2, 2, 3),
            Matrix::new(&[0.0; 4], 2, 2, 2),
            false,
            Threads::One,
        );
    }
}
