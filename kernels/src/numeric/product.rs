//! Products of strided matrices behind a safe interface. The module `single` computes large `f32` products; the crates
//! of `gemm` compute all other products of floats.

mod single;

use super::micro::extent;
use super::panel::Panels;
use super::scalar::Arithmetic;
use super::threads::PARALLEL_PRODUCT;
use device::Result;
use gemm_common::Parallelism;
use graph::{DType, Element};

/// A view of a matrix: element (i, j) is at `i * row_stride + j * column_stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// Returns a view of the first `columns` columns of a row-major matrix, whose rows are `row_stride` apart.
    pub(crate) fn new(data: &'a [T], rows: usize, columns: usize, row_stride: usize) -> Matrix<'a, T> {
        Matrix { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// Returns a view of the transpose.
    pub(crate) fn transposed(self) -> Matrix<'a, T> {
        Matrix {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Returns the view as a view of elements of type `U`, which must be the same type as `T`.
    fn cast<U: Element>(&self) -> Matrix<'a, U>
    where
        T: Element,
    {
        Matrix {
            data: bytemuck::cast_slice(self.data),
            rows: self.rows,
            columns: self.columns,
            row_stride: self.row_stride,
            column_stride: self.column_stride,
        }
    }

    /// Returns a view of the real parts of complex elements, pairs of `R`, for `part` 0, or of the imaginary parts
    /// for 1.
    fn part<R: Element>(&self, part: usize) -> Matrix<'a, R>
    where
        T: Element,
    {
        let data: &[R] = bytemuck::cast_slice(self.data);
        Matrix {
            data: data.get(part..).unwrap_or_default(),
            rows: self.rows,
            columns: self.columns,
            row_stride: 2 * self.row_stride,
            column_stride: 2 * self.column_stride,
        }
    }

    fn check(&self) {
        let end = extent(self.rows, self.row_stride).saturating_add(extent(self.columns, self.column_stride));
        let fits = self.rows == 0 || self.columns == 0 || end < self.data.len();
        assert!(fits, "a matrix view reaches outside its data");
    }
}

/// An `f32` product is computed by [`single`] if its rows, inner elements and columns are each at least this many, and
/// by `gemm` otherwise.
const FEW: usize = 8;

/// Returns whether [`single`] computes an `f32` product with these numbers of rows, inner elements and columns.
fn is_in_blocks(rows: usize, inner: usize, columns: usize) -> bool {
    rows.min(inner).min(columns) >= FEW
}

/// The maximum number of elements of a right factor that is cached in packed form, because the packed copy doubles the
/// factor's memory.
const LARGEST_PACKED: usize = 16 << 20;

/// The threads that a product may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Threads {
    One,
    All,
}

impl Threads {
    /// Returns [`Threads::All`] if there are so many multiplications and additions (`operations`) that parallel
    /// execution is faster.
    pub(crate) fn for_work(operations: usize) -> Threads {
        if operations > PARALLEL_PRODUCT { Threads::All } else { Threads::One }
    }
}

/// Asserts that every element that a product reads or writes is inside its slice, and that rows of `out` do not
/// overlap.
fn check<T>(out: &[T], stride: usize, a: &Matrix<'_, T>, b: &Matrix<'_, T>) {
    a.check();
    b.check();
    assert_eq!(a.columns, b.rows, "the inner sizes of a matrix product differ");
    let end = extent(a.rows, stride).saturating_add(b.columns);
    assert!(a.rows == 0 || b.columns == 0 || end <= out.len(), "a matrix product is larger than its output");
    assert!(a.rows < 2 || stride >= b.columns, "rows of a product overlap");
}

/// Computes `out = a * b`, or `out += a * b`; `out` is row-major with rows `stride` apart.
///
/// # Panics
/// If sizes do not match, or a matrix reaches outside its slice.
pub(crate) fn product<T: Arithmetic>(
    out: &mut [T],
    stride: usize,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    accumulate: bool,
    threads: Threads,
) {
    check(out, stride, &a, &b);
    let parallelism = match threads {
        Threads::All if rayon::current_num_threads() > 1 => Parallelism::Rayon(0),
        _ => Parallelism::None,
    };
    let add = if accumulate { Add::Product } else { Add::Nothing };
    match T::DTYPE {
        DType::Float => {
            let (out, a, b) = (bytemuck::cast_slice_mut(out), a.cast(), b.cast());
            // If there is no memory for panels, `gemm` computes the product, because it needs less memory.
            if is_in_blocks(a.rows, a.columns, b.columns)
                && single::product(out, stride, &a, &b, accumulate, threads).is_ok()
            {
                return;
            }
            f32::product(out, [stride, 1], &a, &b, add, parallelism);
        }
        DType::Double => {
            let out = bytemuck::cast_slice_mut(out);
            f64::product(out, [stride, 1], &a.cast(), &b.cast(), add, parallelism);
        }
        DType::Complex64 => complex_product::<f32, T>(out, stride, &a, &b, add, parallelism),
        DType::Complex128 => complex_product::<f64, T>(out, stride, &a, &b, add, parallelism),
        _ => integer_product(out, stride, a, b, accumulate),
    }
}

/// The effect of a product on the elements of its output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Add {
    /// The product replaces the output.
    Nothing,
    /// The product is added to the output.
    Product,
    /// The product is subtracted from the output.
    NegativeProduct,
}

/// A real element type whose products the crates of `gemm` compute.
trait GemmElement: Element {
    /// Computes a product whose output's rows and columns are `strides` apart.
    ///
    /// # Panics
    /// If a matrix reaches outside its slice.
    fn product(
        out: &mut [Self],
        strides: [usize; 2],
        a: &Matrix<'_, Self>,
        b: &Matrix<'_, Self>,
        add: Add,
        parallelism: Parallelism,
    );
}

macro_rules! gemm_element {
    ($($t:ty: $gemm:path;)*) => { $(impl GemmElement for $t {
        fn product(
            out: &mut [$t],
            [row_stride, column_stride]: [usize; 2],
            a: &Matrix<'_, $t>,
            b: &Matrix<'_, $t>,
            add: Add,
            parallelism: Parallelism,
        ) {
            a.check();
            b.check();
            let end = extent(a.rows, row_stride).saturating_add(extent(b.columns, column_stride));
            assert!(a.rows == 0 || b.columns == 0 || end < out.len(), "a matrix product is larger than its output");
            // `gemm` requires column-major outputs, so a product with a row-major output is computed as the transposed
            // product.
            let (a, b, [row_stride, column_stride]) = if column_stride < row_stride {
                (b.transposed(), a.transposed(), [column_stride, row_stride])
            } else {
                (*a, *b, [row_stride, column_stride])
            };
            let factor = if add == Add::NegativeProduct { -1.0 } else { 1.0 };
            // SAFETY: every element that the strides reach is inside its slice, and the elements of `out` are
            // distinct, as `product` asserts; lengths of slices fit isize.
            unsafe {
                $gemm()(
                    a.rows,
                    b.columns,
                    a.columns,
                    out.as_mut_ptr(),
                    column_stride as isize,
                    row_stride as isize,
                    add != Add::Nothing,
                    a.data.as_ptr(),
                    a.column_stride as isize,
                    a.row_stride as isize,
                    b.data.as_ptr(),
                    b.column_stride as isize,
                    b.row_stride as isize,
                    1.0,
                    factor,
                    false,
                    false,
                    false,
                    parallelism,
                );
            }
        }
    })* };
}

gemm_element! {
    f32: gemm_f32::gemm::f32::get_gemm_fn;
    f64: gemm_f64::gemm::f64::get_gemm_fn;
}

/// Computes a product of complex matrices, whose elements `T` are pairs of `R`, as four products of their real and
/// imaginary parts, which lie two real elements apart.
fn complex_product<R: GemmElement, T: Element>(
    out: &mut [T],
    stride: usize,
    a: &Matrix<'_, T>,
    b: &Matrix<'_, T>,
    add: Add,
    parallelism: Parallelism,
) {
    let out: &mut [R] = bytemuck::cast_slice_mut(out);
    let [a_real, a_imaginary] = [0, 1].map(|part| a.part(part));
    let [b_real, b_imaginary] = [0, 1].map(|part| b.part(part));
    let mut multiply = |part: usize, a: &Matrix<'_, R>, b: &Matrix<'_, R>, add: Add| {
        let out = out.get_mut(part..).unwrap_or_default();
        R::product(out, [2 * stride, 2], a, b, add, parallelism);
    };
    multiply(0, &a_real, &b_real, add);
    multiply(0, &a_imaginary, &b_imaginary, Add::NegativeProduct);
    multiply(1, &a_real, &b_imaginary, add);
    multiply(1, &a_imaginary, &b_real, Add::Product);
}

/// Returns whether packing the right factor once with [`packed`] makes repeated products with these numbers of rows,
/// inner elements and columns faster. `left_is_transposed` says whether the left factor is a transposed view.
pub(crate) fn is_worth_packing(rows: usize, inner: usize, columns: usize, left_is_transposed: bool) -> bool {
    let should_transpose = single::should_transpose(columns, rows, left_is_transposed);
    is_in_blocks(rows, inner, columns) && !should_transpose && inner.saturating_mul(columns) <= LARGEST_PACKED
}

/// Returns the packed right factor of `f32` products, for [`product_with`].
///
/// # Errors
/// `ResourceExhausted` if the memory cannot be allocated.
pub(crate) fn packed(b: Matrix<'_, f32>) -> Result<Panels> {
    b.check();
    single::packed(&b, Threads::for_work(b.rows.saturating_mul(b.columns)))
}

/// Computes `out = a * b` with a packed right factor; `out` is row-major with rows `stride` apart. The results equal
/// the results of [`product`] bit for bit.
///
/// # Panics
/// If sizes do not match, or a matrix reaches outside its slice.
pub(crate) fn product_with(out: &mut [f32], stride: usize, a: Matrix<'_, f32>, b: &Panels, threads: Threads) {
    a.check();
    let end = extent(a.rows, stride).saturating_add(b.columns());
    assert!(
        a.columns == b.steps() && end <= out.len(),
        "the inner sizes of a matrix product differ, or its output is too small"
    );
    single::product_with(out, stride, &a, b, threads);
}

/// Computes an integer product row by row: adds each element of `a` times a row of `b`.
fn integer_product<T: Arithmetic>(
    out: &mut [T],
    stride: usize,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    accumulate: bool,
) {
    if a.rows == 0 || b.columns == 0 {
        return;
    }
    for i in 0..a.rows {
        let out = &mut out[i * stride..][..b.columns];
        if !accumulate {
            out.fill(T::ZERO);
        }
        for k in 0..a.columns {
            let factor = a.data[i * a.row_stride + k * a.column_stride];
            let row = &b.data[k * b.row_stride..];
            if b.column_stride == 1 {
                out.iter_mut().zip(row).for_each(|(o, &v)| *o = o.plus(factor.times(v)));
            } else {
                let row = row.iter().step_by(b.column_stride);
                out.iter_mut().zip(row).for_each(|(o, &v)| *o = o.plus(factor.times(v)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> Vec<f32> {
        (0..len).map(|i| (i * 7919 % 1013) as f32 / 97.0 - 5.0).collect()
    }

    #[test]
    fn products_of_strided_matrices_are_added_to_the_output() {
        let a: Vec<i32> = (1..13).collect();
        let b: Vec<i32> = (1..9).collect();
        let float = |v: &[i32]| v.iter().map(|&x| x as f32).collect::<Vec<_>>();
        // The product of two columns of a 4 x 3 matrix, transposed, and a 4 x 2 matrix.
        let mut exact = [1; 5];
        let (fa, fb, mut real) = (float(&a), float(&b), [1f32; 5]);
        product(
            &mut exact,
            3,
            Matrix::new(&a[1..], 4, 2, 3).transposed(),
            Matrix::new(&b, 4, 2, 2),
            true,
            Threads::One,
        );
        product(
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

    /// Products are bitwise equal whether the right factor is packed before or during the product, on one thread or on
    /// several threads.
    #[test]
    fn packed_factors_give_the_same_sums() -> Result<()> {
        for (m, k, n) in [(8, 8, 8), (9, 600, 33), (300, 1030, 170)] {
            let (x, y) = (noise(m * k), noise(k * n));
            let b = Matrix::new(&y, n, k, k).transposed();
            let panels = packed(b)?;
            let [mut plain, mut one, mut all] = [(); 3].map(|()| vec![0f32; m * n]);
            product(&mut plain, n, Matrix::new(&x, m, k, k), b, false, Threads::One);
            product_with(&mut one, n, Matrix::new(&x, m, k, k), &panels, Threads::One);
            product_with(&mut all, n, Matrix::new(&x, m, k, k), &panels, Threads::All);
            assert!(plain == one && plain == all, "{m} x {k} x {n}");
        }
        Ok(())
    }

    /// Products are bitwise equal for all layouts of the factors: few rows, few columns of a transposed factor, and
    /// rows that fall into the same sets of the cache.
    #[test]
    fn layouts_give_the_same_sums() {
        let turned = |values: &[f32], rows: usize, columns: usize, stride: usize| {
            let mut turned = vec![0.0; columns * stride];
            for (i, row) in values.chunks_exact(columns).enumerate() {
                row.iter().enumerate().for_each(|(j, v)| turned[j * stride + i] = *v);
            }
            assert!(rows <= stride);
            turned
        };
        for (m, k, n) in [
            (8, 9, 64),
            (12, 700, 96),
            (9, 40, 33),
            (512, 64, 10),
            (64, 512, 10),
            (1024, 30, 9),
            (12, 1300, 96),
            (40, 1300, 300),
            (64, 1300, 10),
        ] {
            let (x, y) = (noise(m * k), noise(k * n));
            let wide: Vec<f32> = x.chunks_exact(k).flat_map(|row| [row, &[9.0; 3]].concat()).collect();
            let by_columns = turned(&x, m, k, m);
            let apart = turned(&x, m, k, m + 5);
            let columns_of_y = turned(&y, k, n, k);
            let lefts = [
                Matrix::new(&x, m, k, k),
                Matrix::new(&wide, m, k, k + 3),
                Matrix::new(&by_columns, k, m, m).transposed(),
                Matrix::new(&apart, k, m, m + 5).transposed(),
            ];
            let rights = [Matrix::new(&y, k, n, n), Matrix::new(&columns_of_y, n, k, k).transposed()];
            for accumulate in [false, true] {
                let all = lefts.iter().flat_map(|a| rights.iter().map(move |b| (*a, *b)));
                let all: Vec<Vec<f32>> = all
                    .map(|(a, b)| {
                        let mut out = vec![3.0; m * (n + 2)];
                        product(&mut out, n + 2, a, b, accumulate, Threads::One);
                        out
                    })
                    .collect();
                assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{m} x {k} x {n}, {accumulate}");
                assert!(all[0].chunks_exact(n + 2).all(|row| row[n..] == [3.0; 2]), "beside the product");
                let sum: f64 = (0..k).map(|t| f64::from(x[t]) * f64::from(y[t * n])).sum();
                let sum = sum + if accumulate { 3.0 } else { 0.0 };
                assert!((f64::from(all[0][0]) - sum).abs() < 1e-3 * (1.0 + sum.abs()), "{sum}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside its data")]
    fn matrix_views_outside_their_data_are_refused() {
        let mut out = [0f32; 4];
        product(
            &mut out,
            2,
            Matrix::new(&[0.0; 4], 2, 2, 3),
            Matrix::new(&[0.0; 4], 2, 2, 2),
            false,
            Threads::One,
        );
    }
}
