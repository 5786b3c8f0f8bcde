//! Decompositions of dense matrices (Golub and Van Loan, "Matrix computations").

use super::matrix::{Entry, Matrix};
use std::cmp::Ordering;

/// Returns the lower triangular Cholesky factor of a positive definite matrix, reading its lower triangle only; `None`
/// if the matrix is not positive definite.
pub(super) fn cholesky<F: Entry>(a: &Matrix<F>) -> Option<Matrix<F>> {
    let n = a.rows;
    let mut l = Matrix::new(n, n, vec![F::ZERO; n * n]);
    for j in 0..n {
        let squares: f64 = (0..j).map(|k| l.at(j, k).modulus().powi(2)).sum();
        let pivot = a.at(j, j).real() - squares;
        if pivot <= 0.0 || pivot.is_nan() {
            return None;
        }
        let root = pivot.sqrt();
        l.put(j, j, F::from_real(root));
        for i in j + 1..n {
            let sum = (0..j).fold(a.at(i, j), |sum, k| sum.minus(l.at(i, k).times(l.at(j, k).conjugated())));
            l.put(i, j, sum.over(F::from_real(root)));
        }
    }
    Some(l)
}

/// An LU decomposition with partial pivoting. Both triangular factors are in one matrix; row `i` of their product
/// is row `order[i]` of the decomposed matrix.
pub(super) struct Lu<F> {
    pub(super) factors: Matrix<F>,
    pub(super) order: Vec<usize>,
    is_odd: bool,
}

impl<F: Entry> Lu<F> {
    /// Returns the LU decomposition of a square matrix.
    pub(super) fn of(mut a: Matrix<F>) -> Lu<F> {
        let n = a.rows;
        let mut order: Vec<usize> = (0..n).collect();
        let mut is_odd = false;
        for k in 0..n {
            let mut pivot = k;
            for i in k + 1..n {
                if a.at(i, k).modulus() > a.at(pivot, k).modulus() {
                    pivot = i;
                }
            }
            if a.at(pivot, k) == F::ZERO {
                continue;
            }
            a.swap_rows(k, pivot);
            order.swap(k, pivot);
            is_odd ^= pivot != k;
            for i in k + 1..n {
                let factor = a.at(i, k).over(a.at(k, k));
                a.put(i, k, factor);
                for j in k + 1..n {
                    let value = a.at(i, j).minus(factor.times(a.at(k, j)));
                    a.put(i, j, value);
                }
            }
        }
        Lu { factors: a, order, is_odd }
    }

    /// Returns whether the matrix is singular, which means that a pivot is zero.
    pub(super) fn is_singular(&self) -> bool {
        // A NaN pivot counts as zero.
        (0..self.factors.rows)
            .map(|d| self.factors.at(d, d).modulus())
            .any(|size| size == 0.0 || size.is_nan())
    }

    /// Returns the determinant of the decomposed matrix.
    pub(super) fn determinant(&self) -> F {
        let sign = F::from_real(if self.is_odd { -1.0 } else { 1.0 });
        (0..self.factors.rows).fold(sign, |product, d| product.times(self.factors.at(d, d)))
    }

    /// Returns the determinant of the decomposed matrix as a sign (a number of absolute value 1, or 0) and the
    /// logarithm of its absolute value.
    pub(super) fn log_determinant(&self) -> (F, f64) {
        let sign = F::from_real(if self.is_odd { -1.0 } else { 1.0 });
        (0..self.factors.rows).fold((sign, 0.0), |(sign, log), d| {
            let pivot = self.factors.at(d, d);
            let size = pivot.modulus();
            match size == 0.0 {
                true => (F::ZERO, f64::NEG_INFINITY),
                false => (sign.times(pivot.sign()), log + size.ln()),
            }
        })
    }

    /// Returns the solution of the systems with the right-hand sides `b`.
    pub(super) fn solve(&self, b: &Matrix<F>) -> Matrix<F> {
        let rows =
            self.order.iter().flat_map(|&i| b.values[i * b.columns..(i + 1) * b.columns].iter().copied());
        let permuted = Matrix::new(b.rows, b.columns, rows.collect());
        let y = triangular_solve(&self.factors, &permuted, true, true);
        triangular_solve(&self.factors, &y, false, false)
    }
}

/// Returns the solution of a triangular system. Only the lower triangle of `a` is read if `lower` is set, else only the
/// upper one; if `unit` is set, the diagonal counts as ones.
pub(super) fn triangular_solve<F: Entry>(a: &Matrix<F>, b: &Matrix<F>, lower: bool, unit: bool) -> Matrix<F> {
    let (n, columns) = (b.rows, b.columns);
    let mut x = b.clone();
    for step in 0..n {
        let i = if lower { step } else { n - 1 - step };
        let solved = if lower { 0..i } else { i + 1..n };
        for k in solved {
            let factor = a.at(i, k);
            for j in 0..columns {
                let value = x.at(i, j).minus(factor.times(x.at(k, j)));
                x.put(i, j, value);
            }
        }
        if !unit {
            (0..columns).for_each(|j| {
                let value = x.at(i, j).over(a.at(i, i));
                x.put(i, j, value);
            });
        }
    }
    x
}

/// Returns the QR decomposition, computed by Householder reflections: a unitary matrix, and an upper triangular
/// one.
pub(super) fn qr<F: Entry>(a: &Matrix<F>) -> (Matrix<F>, Matrix<F>) {
    let (m, n) = (a.rows, a.columns);
    let (mut r, mut q) = (a.clone(), Matrix::<F>::identity(m, m));
    for k in 0..m.min(n) {
        let tail: f64 = (k + 1..m).map(|i| r.at(i, k).modulus().powi(2)).sum();
        let head = r.at(k, k);
        if tail == 0.0 && head.to_complex().im == 0.0 {
            continue;
        }
        let norm = (head.modulus().powi(2) + tail).sqrt();
        // The diagonal element becomes real, with the sign opposite to that of `head`, to avoid cancellation.
        let beta = if head.real() >= 0.0 { -norm } else { norm };
        let mut v: Vec<F> = (k..m).map(|i| r.at(i, k)).collect();
        v[0] = head.minus(F::from_real(beta));
        let tau = F::from_real(beta).minus(head).over(F::from_real(beta)).conjugated();
        let scale = v[0];
        v.iter_mut().for_each(|x| *x = x.over(scale));
        for j in 0..n {
            let dot = (k..m).fold(F::ZERO, |sum, i| sum.plus(v[i - k].conjugated().times(r.at(i, j))));
            let dot = dot.times(tau);
            for i in k..m {
                let value = r.at(i, j).minus(v[i - k].times(dot));
                r.put(i, j, value);
            }
        }
        for i in 0..m {
            let dot = (k..m).fold(F::ZERO, |sum, j| sum.plus(q.at(i, j).times(v[j - k])));
            let dot = dot.times(tau.conjugated());
            for j in k..m {
                let value = q.at(i, j).minus(dot.times(v[j - k].conjugated()));
                q.put(i, j, value);
            }
        }
        (k + 1..m).for_each(|i| r.put(i, k, F::ZERO));
    }
    (q, r)
}

/// The maximum number of Jacobi sweeps over all pairs of columns. Sweeps stop when the off-diagonal elements are of
/// rounding size, which happens earlier.
const SWEEPS: usize = 60;

/// Returns the eigenvalues in ascending order, and the eigenvectors as columns, of a self-adjoint matrix, reading
/// its lower triangle only: Jacobi's method. `None` if it does not converge.
pub(super) fn self_adjoint<F: Entry>(a: &Matrix<F>) -> Option<(Vec<f64>, Matrix<F>)> {
    let n = a.rows;
    let mut a = a.clone();
    for i in 0..n {
        let diagonal = F::from_real(a.at(i, i).real());
        a.put(i, i, diagonal);
        for j in i + 1..n {
            let mirrored = a.at(j, i).conjugated();
            a.put(i, j, mirrored);
        }
    }
    let mut v = Matrix::<F>::identity(n, n);
    let norm: f64 = a.values.iter().map(|x| x.modulus().powi(2)).sum();
    if !norm.is_finite() {
        return None;
    }
    for _ in 0..SWEEPS {
        let off: f64 =
            (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| a.at(i, j).modulus().powi(2)).sum();
        if off <= f64::EPSILON * f64::EPSILON * norm {
            let diagonal: Vec<f64> = (0..n).map(|i| a.at(i, i).real()).collect();
            let order = sorted(n, &|&i, &j| diagonal[i].total_cmp(&diagonal[j]));
            let values = order.iter().map(|&i| diagonal[i]).collect();
            let vectors = (0..n).flat_map(|i| order.iter().map(move |&j| (i, j))).map(|(i, j)| v.at(i, j));
            return Some((values, Matrix::new(n, n, vectors.collect())));
        }
        for p in 0..n {
            for q in p + 1..n {
                rotate(&mut a, &mut v, p, q);
            }
        }
    }
    None
}

/// Returns the integers below `count`, ordered by `compare`; the sort is stable.
fn sorted(count: usize, compare: &dyn Fn(&usize, &usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(compare);
    order
}

/// Applies the Jacobi rotation that makes the element `(p, q)` of `a` zero, and accumulates it in `v`.
fn rotate<F: Entry>(a: &mut Matrix<F>, v: &mut Matrix<F>, p: usize, q: usize) {
    let size = a.at(p, q).modulus();
    if size == 0.0 {
        return;
    }
    let phase = a.at(p, q).over(F::from_real(size));
    let theta = (a.at(q, q).real() - a.at(p, p).real()) / (2.0 * size);
    let t = 1.0 / (theta.abs() + (theta * theta + 1.0).sqrt());
    let t = if theta < 0.0 { -t } else { t };
    let c = 1.0 / (t * t + 1.0).sqrt();
    let (cosine, sine) = (F::from_real(c), F::from_real(t * c).times(phase));
    // The rotation changes columns `p` and `q` of `a` and `v`, then rows `p` and `q` of `a`.
    for m in [&mut *a, &mut *v] {
        for i in 0..m.rows {
            let (x, y) = (m.at(i, p), m.at(i, q));
            m.put(i, p, cosine.times(x).minus(sine.conjugated().times(y)));
            m.put(i, q, sine.times(x).plus(cosine.times(y)));
        }
    }
    for j in 0..a.columns {
        let (x, y) = (a.at(p, j), a.at(q, j));
        a.put(p, j, cosine.times(x).minus(sine.times(y)));
        a.put(q, j, sine.conjugated().times(x).plus(cosine.times(y)));
    }
    // Rounding makes the two triangles of `a` differ slightly; columns `p` and `q` are set from rows `p` and `q`,
    // because otherwise the difference would remain.
    for of in [p, q] {
        let diagonal = F::from_real(a.at(of, of).real());
        (0..a.rows).for_each(|j| a.put(j, of, a.at(of, j).conjugated()));
        a.put(of, of, diagonal);
    }
}

/// Returns the singular values in descending order, and complete unitary matrices with the left and right singular
/// vectors as columns: one-sided Jacobi's method. `None` if it does not converge.
#[allow(clippy::type_complexity, reason = "three parts that get names where the tuple is destructured")]
pub(super) fn svd<F: Entry>(a: &Matrix<F>) -> Option<(Vec<f64>, Matrix<F>, Matrix<F>)> {
    if a.rows < a.columns {
        let (s, u, v) = svd(&a.adjoint())?;
        return Some((s, v, u));
    }
    let (m, n) = (a.rows, a.columns);
    let (mut w, mut v) = (a.clone(), Matrix::<F>::identity(n, n));
    let norm: f64 = w.values.iter().map(|x| x.modulus().powi(2)).sum();
    if !norm.is_finite() {
        return None;
    }
    let mut converged = false;
    for _ in 0..SWEEPS {
        converged = true;
        for p in 0..n {
            for q in p + 1..n {
                converged &= orthogonalize(&mut w, &mut v, p, q, norm);
            }
        }
        if converged {
            break;
        }
    }
    if !converged {
        return None;
    }
    let sizes: Vec<f64> =
        (0..n).map(|j| (0..m).map(|i| w.at(i, j).modulus().powi(2)).sum::<f64>().sqrt()).collect();
    let order = sorted(n, &|&i, &j| sizes[j].total_cmp(&sizes[i]));
    let right = (0..n).flat_map(|i| order.iter().map(move |&j| (i, j))).map(|(i, j)| v.at(i, j)).collect();
    let mut columns: Vec<Vec<F>> = Vec::with_capacity(m);
    let least = sizes.iter().copied().fold(0.0, f64::max) * f64::EPSILON;
    for &j in &order {
        if sizes[j] > least {
            columns.push((0..m).map(|i| w.at(i, j).over(F::from_real(sizes[j]))).collect());
        } else {
            columns.push(orthogonal_unit_vector(&columns, m));
        }
    }
    while columns.len() < m {
        columns.push(orthogonal_unit_vector(&columns, m));
    }
    let left = (0..m).flat_map(|i| columns.iter().map(move |c| c[i])).collect();
    let values = order.iter().map(|&j| sizes[j]).collect();
    Some((values, Matrix::new(m, m, left), Matrix::new(n, n, right)))
}

/// Rotates columns `p` and `q` of `w` so that they become orthogonal, and rotates those columns of `v` alike. Returns
/// whether the columns of `w` already were orthogonal.
fn orthogonalize<F: Entry>(w: &mut Matrix<F>, v: &mut Matrix<F>, p: usize, q: usize, norm: f64) -> bool {
    let (mut alpha, mut beta, mut gamma) = (0.0, 0.0, F::ZERO);
    for i in 0..w.rows {
        let (x, y) = (w.at(i, p), w.at(i, q));
        alpha += x.modulus().powi(2);
        beta += y.modulus().powi(2);
        gamma = gamma.plus(x.conjugated().times(y));
    }
    let size = gamma.modulus();
    // The approximate relative rounding error of a sum of `w.rows` terms.
    let enough = f64::EPSILON * (w.rows as f64).sqrt();
    if size <= enough * alpha.sqrt() * beta.sqrt() || size <= f64::EPSILON * f64::EPSILON * norm {
        return true;
    }
    let phase = gamma.over(F::from_real(size));
    let zeta = (beta - alpha) / (2.0 * size);
    let t = 1.0 / (zeta.abs() + (zeta * zeta + 1.0).sqrt());
    let t = if zeta < 0.0 { -t } else { t };
    let c = 1.0 / (t * t + 1.0).sqrt();
    let (cosine, sine) = (F::from_real(c), F::from_real(t * c).times(phase));
    for m in [w, v] {
        for i in 0..m.rows {
            let (x, y) = (m.at(i, p), m.at(i, q));
            m.put(i, p, cosine.times(x).minus(sine.conjugated().times(y)));
            m.put(i, q, sine.times(x).plus(cosine.times(y)));
        }
    }
    false
}

/// Returns a unit vector of `m` entries that is orthogonal to `columns`, of which there are fewer than `m`: the axis on
/// which the columns have the least weight, orthogonalised against the columns.
fn orthogonal_unit_vector<F: Entry>(columns: &[Vec<F>], m: usize) -> Vec<F> {
    let weights: Vec<f64> =
        (0..m).map(|axis| columns.iter().map(|column| column[axis].modulus().powi(2)).sum()).collect();
    let lightest = (0..m).min_by(|&a, &b| weights[a].total_cmp(&weights[b])).unwrap_or(0);
    let mut vector = vec![F::ZERO; m];
    vector[lightest] = F::ONE;
    // Two passes suffice: the second removes the components that rounding left in the first.
    for column in columns.iter().chain(columns) {
        let dot = column.iter().zip(&vector).fold(F::ZERO, |s, (c, x)| s.plus(c.conjugated().times(*x)));
        vector.iter_mut().zip(column).for_each(|(x, c)| *x = x.minus(dot.times(*c)));
    }
    let size = vector.iter().map(|x| x.modulus().powi(2)).sum::<f64>().sqrt();
    vector.iter_mut().for_each(|x| *x = x.over(F::from_real(size.max(f64::MIN_POSITIVE))));
    vector
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_complex::Complex;

    fn product<F: Entry>(a: &Matrix<F>, b: &Matrix<F>) -> Matrix<F> {
        let mut out = Matrix::new(a.rows, b.columns, vec![F::ZERO; a.rows * b.columns]);
        for i in 0..a.rows {
            for j in 0..b.columns {
                let sum = (0..a.columns).fold(F::ZERO, |s, k| s.plus(a.at(i, k).times(b.at(k, j))));
                out.put(i, j, sum);
            }
        }
        out
    }

    fn scaled<F: Entry>(values: &[f64], rows: usize, columns: usize) -> Matrix<F> {
        let mut out = Matrix::new(rows, columns, vec![F::ZERO; rows * columns]);
        values.iter().enumerate().for_each(|(d, &v)| out.put(d, d, F::from_real(v)));
        out
    }

    fn assert_near<F: Entry>(a: &Matrix<F>, b: &Matrix<F>) {
        let far = a.values.iter().zip(&b.values).map(|(x, y)| x.minus(*y).modulus()).fold(0.0, f64::max);
        assert!((a.rows, a.columns) == (b.rows, b.columns) && far < 1e-12, "{a:?} is not {b:?}");
    }

    fn sample<F: Entry>(rows: usize, columns: usize) -> Matrix<F> {
        let value = |i: usize| Complex::new((i as f64 * 1.7 + 0.3).sin(), (i as f64 * 2.3).cos());
        Matrix::new(rows, columns, (0..rows * columns).map(|i| F::from_complex(value(i))).collect())
    }

    /// Returns a matrix of pseudo-random entries, which has full rank.
    fn mixed<F: Entry>(rows: usize, columns: usize) -> Matrix<F> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        };
        Matrix::new(
            rows,
            columns,
            (0..rows * columns).map(|_| F::from_complex(Complex::new(next(), next()))).collect(),
        )
    }

    fn check_of_any_size<F: Entry>() {
        for (rows, columns) in [(24, 24), (60, 12), (7, 40)] {
            let a = mixed::<F>(rows, columns);
            let Some((s, u, v)) = svd(&a) else { panic!("no singular values of {rows} x {columns}") };
            assert_near(&product(&product(&u, &scaled(&s, rows, columns)), &v.adjoint()), &a);
        }
        for size in [2, 19, 40] {
            let a = mixed::<F>(size, size);
            let sum = a.values.iter().zip(&a.adjoint().values).map(|(x, y)| x.plus(*y)).collect();
            let a = Matrix::new(size, size, sum);
            let Some((values, vectors)) = self_adjoint(&a) else {
                panic!("no eigenvalues of {size} x {size}")
            };
            assert_near(&product(&product(&vectors, &scaled(&values, size, size)), &vectors.adjoint()), &a);
        }
    }

    #[test]
    fn large_matrices_are_decomposed() {
        check_of_any_size::<f64>();
        check_of_any_size::<Complex<f64>>();
    }

    fn check<F: Entry>() {
        for (rows, columns) in [(4, 3), (3, 4), (3, 3), (1, 1), (5, 2)] {
            let a = sample::<F>(rows, columns);
            let (q, r) = qr(&a);
            assert_near(&product(&q, &r), &a);
            assert_near(&product(&q.adjoint(), &q), &Matrix::identity(rows, rows));
            let Some((s, u, v)) = svd(&a) else { panic!("no singular values of {a:?}") };
            assert!(s.windows(2).all(|w| w[0] >= w[1]), "{s:?}");
            assert_near(&product(&product(&u, &scaled(&s, rows, columns)), &v.adjoint()), &a);
            assert_near(&product(&u.adjoint(), &u), &Matrix::identity(rows, rows));
            let square = product(&a, &a.adjoint());
            let Some((values, vectors)) = self_adjoint(&square) else {
                panic!("no eigenvalues of {square:?}")
            };
            assert!(values.windows(2).all(|w| w[0] <= w[1]), "{values:?}");
            let scaled = product(&vectors, &scaled(&values, rows, rows));
            assert_near(&product(&scaled, &vectors.adjoint()), &square);
        }
    }

    #[test]
    fn factors_multiply_to_the_matrix() {
        check::<f64>();
        check::<Complex<f64>>();
    }

    #[test]
    fn indefinite_matrices_have_no_cholesky_factor() {
        assert!(cholesky(&Matrix::new(2, 2, vec![1.0, 2.0, 2.0, 1.0])).is_none());
    }
}
