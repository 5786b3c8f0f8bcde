//! Functions of square matrices: square roots and logarithms by the complex Schur form, and exponentials (Higham,
//! "Functions of matrices").

use super::decompose::triangular_solve;
use super::matrix::{Entry, Matrix};
use num_complex::Complex64;

type Complex = Matrix<Complex64>;

fn zeros(n: usize) -> Complex {
    Matrix::new(n, n, vec![Complex64::default(); n * n])
}

fn product<F: Entry>(a: &Matrix<F>, b: &Matrix<F>) -> Matrix<F> {
    let mut out = Matrix::new(a.rows, b.columns, vec![F::ZERO; a.rows * b.columns]);
    for i in 0..a.rows {
        for k in 0..a.columns {
            let factor = a.at(i, k);
            for j in 0..b.columns {
                out.put(i, j, out.at(i, j).plus(factor.times(b.at(k, j))));
            }
        }
    }
    out
}

/// Returns the greatest sum of absolute values of a row.
fn norm<F: Entry>(a: &Matrix<F>) -> f64 {
    let rows = a.values.chunks(a.columns.max(1)).map(|row| row.iter().map(|v| v.modulus()).sum::<f64>());
    // The comparison `sum > most` alone would drop NaN.
    rows.fold(0.0, |most, sum| if sum > most || sum.is_nan() { sum } else { most })
}

/// Applies the Householder reflection by the unit vector `v` to the rows and columns of `t` from `first` on, as a
/// similarity transformation, and accumulates the reflection in `q`.
fn reflect(t: &mut Complex, q: &mut Complex, first: usize, v: &[Complex64]) {
    let n = t.rows;
    for j in 0..n {
        let dot: Complex64 = v.iter().enumerate().map(|(i, v)| v.conj() * t.at(first + i, j)).sum();
        v.iter().enumerate().for_each(|(i, v)| t.put(first + i, j, t.at(first + i, j) - 2.0 * v * dot));
    }
    for m in [t, q] {
        for i in 0..n {
            let dot: Complex64 = v.iter().enumerate().map(|(j, v)| m.at(i, first + j) * v).sum();
            v.iter().enumerate().for_each(|(j, v)| {
                m.put(i, first + j, m.at(i, first + j) - 2.0 * dot * v.conj());
            });
        }
    }
}

/// Returns an upper triangular matrix `t` and a unitary matrix `q` with `a = q t qᴴ`; `None` if the iteration does not
/// converge.
fn schur(a: &Complex) -> Option<(Complex, Complex)> {
    let n = a.rows;
    let (mut t, mut q) = (a.clone(), Matrix::identity(n, n));
    for k in 0..n.saturating_sub(2) {
        let mut v: Vec<Complex64> = (k + 1..n).map(|i| t.at(i, k)).collect();
        let length = v.iter().map(Complex64::norm_sqr).sum::<f64>().sqrt();
        if length == 0.0 {
            continue;
        }
        let phase = if v[0].norm() > 0.0 { v[0] / v[0].norm() } else { Complex64::new(1.0, 0.0) };
        v[0] += phase * length;
        let length = v.iter().map(Complex64::norm_sqr).sum::<f64>().sqrt();
        v.iter_mut().for_each(|v| *v /= length);
        reflect(&mut t, &mut q, k + 1, &v);
        (k + 2..n).for_each(|i| t.put(i, k, Complex64::default()));
    }
    let (mut last, mut rounds) = (n.saturating_sub(1), 0);
    while last > 0 {
        let is_small = |l: usize| {
            let beside = t.at(l - 1, l - 1).norm() + t.at(l, l).norm();
            let beside = if beside == 0.0 { 1.0 } else { beside };
            t.at(l, l - 1).norm() <= f64::EPSILON * beside
        };
        let first = (1..=last).rev().find(|&l| is_small(l)).unwrap_or(0);
        if first > 0 {
            t.put(first, first - 1, Complex64::default());
        }
        if first == last {
            (last, rounds) = (last - 1, 0);
            continue;
        }
        rounds += 1;
        if rounds > 200 || t.at(last, last).is_nan() {
            return None;
        }
        rotate(&mut t, &mut q, first, last, rounds % 11 == 10);
    }
    Some((t, q))
}

/// Makes one step of the shifted QR iteration on the rows and columns `first..=last`.
fn rotate(t: &mut Complex, q: &mut Complex, first: usize, last: usize, is_exceptional: bool) {
    let shift = if is_exceptional {
        t.at(last, last) + t.at(last, last - 1).norm()
    } else {
        // The eigenvalue of the last two rows and columns that is closer to the last entry.
        let (a, d) = (t.at(last - 1, last - 1), t.at(last, last));
        let half = 0.5 * (a - d);
        let root = (half * half + t.at(last - 1, last) * t.at(last, last - 1)).sqrt();
        let (one, other) = (d + half + root, d + half - root);
        if (one - d).norm() < (other - d).norm() { one } else { other }
    };
    (first..=last).for_each(|i| t.put(i, i, t.at(i, i) - shift));
    let n = t.columns;
    let mut rotations = Vec::with_capacity(last - first);
    for k in first..last {
        let (a, b) = (t.at(k, k), t.at(k + 1, k));
        let length = (a.norm_sqr() + b.norm_sqr()).sqrt();
        let (c, s) = match length > 0.0 {
            true => (a / length, b / length),
            false => (Complex64::new(1.0, 0.0), Complex64::default()),
        };
        for j in k..n {
            let (above, below) = (t.at(k, j), t.at(k + 1, j));
            t.put(k, j, c.conj() * above + s.conj() * below);
            t.put(k + 1, j, c * below - s * above);
        }
        rotations.push((c, s));
    }
    for (k, (c, s)) in (first..last).zip(rotations) {
        let turn = |m: &mut Complex, i: usize| {
            let (left, right) = (m.at(i, k), m.at(i, k + 1));
            m.put(i, k, left * c + right * s);
            m.put(i, k + 1, right * c.conj() - left * s.conj());
        };
        (0..=(k + 1).min(last)).for_each(|i| turn(t, i));
        (0..n).for_each(|i| turn(q, i));
    }
    (first..=last).for_each(|i| t.put(i, i, t.at(i, i) + shift));
}

/// Returns the principal square root of an upper triangular matrix.
fn triangular_root(t: &Complex) -> Complex {
    let n = t.rows;
    let mut root = zeros(n);
    for j in 0..n {
        root.put(j, j, t.at(j, j).sqrt());
        for i in (0..j).rev() {
            let inner: Complex64 = (i + 1..j).map(|k| root.at(i, k) * root.at(k, j)).sum();
            root.put(i, j, (t.at(i, j) - inner) / (root.at(i, i) + root.at(j, j)));
        }
    }
    root
}

/// Returns the eigenvalues, and eigenvectors of length one as columns; `None` if the iteration does not converge.
pub(super) fn eigen(a: &Complex) -> Option<(Vec<Complex64>, Complex)> {
    let (t, q) = schur(a)?;
    let n = a.rows;
    let smallest = f64::EPSILON * norm(&t).max(f64::MIN_POSITIVE);
    let mut vectors = zeros(n);
    for k in 0..n {
        // The eigenvector of the triangular matrix, by substitution from its last entry that is not zero.
        let mut x = vec![Complex64::default(); k + 1];
        x[k] = Complex64::new(1.0, 0.0);
        for i in (0..k).rev() {
            let sum: Complex64 = (i + 1..=k).map(|j| t.at(i, j) * x[j]).sum();
            let distance = t.at(k, k) - t.at(i, i);
            x[i] = sum / if distance.norm() < smallest { Complex64::new(smallest, 0.0) } else { distance };
        }
        let column: Vec<Complex64> =
            (0..n).map(|i| x.iter().enumerate().map(|(j, x)| q.at(i, j) * x).sum()).collect();
        let length = column.iter().map(Complex64::norm_sqr).sum::<f64>().sqrt();
        column.iter().enumerate().for_each(|(i, v)| vectors.put(i, k, v / length));
    }
    Some(((0..n).map(|k| t.at(k, k)).collect(), vectors))
}

/// Returns the matrix with a function applied to its triangular Schur factor; NaN if `is_defined` is false for the
/// factor, or if the eigenvalues are not found.
fn by_schur<F: Entry>(
    a: &Matrix<F>,
    is_defined: impl Fn(&Complex) -> bool,
    function: impl Fn(Complex) -> Complex,
) -> Matrix<F> {
    let complex = Matrix::new(a.rows, a.columns, a.values.iter().map(|v| v.to_complex()).collect());
    let values = match schur(&complex) {
        Some((t, q)) if is_defined(&t) => product(&product(&q, &function(t)), &q.adjoint()).values,
        _ => vec![Complex64::new(f64::NAN, f64::NAN); a.values.len()],
    };
    Matrix::new(a.rows, a.columns, values.into_iter().map(F::from_complex).collect())
}

/// Returns the principal square root. A real matrix with a negative eigenvalue has none, which gives NaN.
pub(super) fn square_root<F: Entry>(a: &Matrix<F>) -> Matrix<F> {
    let is_real = F::from_complex(Complex64::i()) == F::ZERO;
    let is_negative = |value: Complex64| value.re < 0.0 && value.im.abs() <= 1e-12 * value.norm();
    let has_root = |t: &Complex| !is_real || (0..t.rows).all(|i| !is_negative(t.at(i, i)));
    by_schur(a, has_root, |t| triangular_root(&t))
}

/// Returns the principal logarithm.
pub(super) fn logarithm<F: Entry>(a: &Matrix<F>) -> Matrix<F> {
    by_schur(a, |_| true, triangular_logarithm)
}

/// The number of points of the quadrature by which a logarithm near the identity is computed.
const POINTS: usize = 10;

fn triangular_logarithm(mut t: Complex) -> Complex {
    let n = t.rows;
    let identity = Matrix::identity(n, n);
    let minus = |a: &Complex, b: &Complex| {
        Matrix::new(n, n, a.values.iter().zip(&b.values).map(|(a, b)| a - b).collect())
    };
    let mut scale = 1.0;
    for _ in 0..100 {
        if norm(&minus(&t, &identity)) < 0.25 {
            break;
        }
        t = triangular_root(&t);
        scale *= 2.0;
    }
    // log(1 + x) is the integral of x / (1 + s x) over s from 0 to 1, by the formula of Gauss and Legendre.
    let x = minus(&t, &identity);
    let mut out = zeros(n);
    for (at, weight) in gauss_legendre() {
        let scaled = Matrix::new(n, n, x.values.iter().map(|v| v * at).collect());
        let system =
            Matrix::new(n, n, scaled.values.iter().zip(&identity.values).map(|(a, b)| a + b).collect());
        let part = triangular_solve(&system, &x, false, false);
        out.values.iter_mut().zip(part.values).for_each(|(sum, value)| *sum += value * weight);
    }
    out.values.iter_mut().for_each(|value| *value *= scale);
    out
}

/// Returns the points and weights of the Gauss-Legendre quadrature between 0 and 1.
fn gauss_legendre() -> Vec<(f64, f64)> {
    let point = |i: usize| {
        let mut x = (std::f64::consts::PI * (i as f64 + 0.75) / (POINTS as f64 + 0.5)).cos();
        let mut slope = 1.0;
        for _ in 0..20 {
            let (mut before, mut value) = (1.0, x);
            for k in 2..=POINTS {
                let k = k as f64;
                (before, value) = (value, ((2.0 * k - 1.0) * x * value - (k - 1.0) * before) / k);
            }
            slope = POINTS as f64 * (x * value - before) / (x * x - 1.0);
            x -= value / slope;
        }
        (0.5 * (1.0 + x), 1.0 / ((1.0 - x * x) * slope * slope))
    };
    (0..POINTS).map(point).collect()
}

/// Returns the exponential, by the Taylor series of a fraction of the matrix, squared repeatedly.
pub(super) fn exponential<F: Entry>(a: &Matrix<F>) -> Matrix<F> {
    let n = a.rows;
    let size = norm(a);
    let halvings = if size.is_finite() && size > 0.25 { (size / 0.25).log2().ceil() as i32 } else { 0 };
    let scale = F::from_real(2f64.powi(-halvings));
    let x = Matrix::new(n, n, a.values.iter().map(|v| v.times(scale)).collect());
    let mut out = Matrix::identity(n, n);
    for k in (1..=18).rev() {
        let factor = F::from_real(1.0 / f64::from(k));
        let mut next = product(&x, &out);
        next.values.iter_mut().for_each(|v| *v = v.times(factor));
        (0..n).for_each(|i| next.put(i, i, next.at(i, i).plus(F::ONE)));
        out = next;
    }
    (0..halvings).for_each(|_| out = product(&out, &out));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(n: usize) -> Complex {
        let entry = |k: usize| {
            let k = k as f64;
            Complex64::new((1.7 * k).sin(), (0.9 * k + 0.3).cos())
        };
        let mut a = Matrix::new(n, n, (0..n * n).map(entry).collect());
        (0..n).for_each(|i| a.put(i, i, a.at(i, i) + 3.0 * n as f64));
        a
    }

    fn assert_near(a: &Complex, b: &Complex) {
        let most = a.values.iter().zip(&b.values).map(|(a, b)| (a - b).norm()).fold(0.0, f64::max);
        assert!(most < 1e-11, "the matrices differ by {most}");
    }

    #[test]
    fn functions_of_matrices_are_inverse_to_each_other() {
        for n in [1, 2, 3, 5, 9] {
            let a = sample(n);
            let root = square_root(&a);
            assert_near(&product(&root, &root), &a);
            let log = logarithm(&a);
            assert_near(&exponential(&log), &a);
        }
    }

    #[test]
    fn a_rotation_has_the_logarithm_of_its_angle() {
        let [one, zero] = [1.0, 0.0].map(|x| Complex64::new(x, 0.0));
        let turn = Matrix::new(2, 2, vec![zero, -one, one, zero]);
        let angle = Complex64::new(std::f64::consts::FRAC_PI_2, 0.0);
        let log = logarithm(&turn);
        assert_near(&log, &Matrix::new(2, 2, vec![zero, -angle, angle, zero]));
    }
}
