//! `MatrixSolveLs`: least-squares solutions of linear equations.

use super::decompose::{cholesky, svd, triangular_solve};
use super::matrix::{Entry, Matrix};
use super::{MatrixBatch, set_matrices};
use device::Result;
use device::invalid;
use device::kernel::KernelContext;
use graph::{DType, Shape};

/// Returns the L2 regularizer in input 2, after checking that it is not negative.
fn regularizer(ctx: &KernelContext<'_>) -> Result<f64> {
    let value: f64 = ctx.scalar(2, "l2_regularizer")?.item()?;
    if value.is_nan() || value < 0.0 {
        invalid!("l2_regularizer must be >= 0.");
    }
    Ok(value)
}

/// Outputs the solutions. `fast` uses the normal equations, which fail for matrices of deficient rank. Otherwise
/// the shortest of the best solutions is computed from the singular values, and the regularizer is ignored.
pub(super) fn solve<F: Entry>(ctx: &mut KernelContext<'_>, fast: bool) -> Result<()> {
    let (a, b) = (ctx.input(0)?, ctx.input(1)?);
    if a.shape().rank() != b.shape().rank() {
        invalid!("All input tensors must have the same rank.");
    }
    let dtype = a.dtype();
    let (a, b) = (MatrixBatch::<F>::of(a)?, MatrixBatch::<F>::of(b)?);
    if a.sizes != b.sizes {
        invalid!("All input tensors must have the same outer dimensions.");
    }
    if a.rows != b.rows {
        invalid!("Input matrix and rhs are incompatible.");
    }
    // The regularizer is not read, and so not checked, for an empty batch.
    let regularizer = if a.matrices.is_empty() { 0.0 } else { regularizer(ctx)? };
    let least =
        if matches!(dtype, DType::Float | DType::Complex64) { f32::EPSILON.into() } else { f64::EPSILON };
    let mut values = Vec::new();
    for (a, b) in a.matrices.iter().zip(&b.matrices) {
        let solution = if fast { normal(a, b, regularizer)? } else { shortest(a, b, least) };
        values.extend(solution.values);
    }
    let shape = Shape::new(&[&a.sizes[..], &[a.columns, b.columns]].concat())?;
    set_matrices(ctx, 0, dtype, shape, &values)
}

/// Solves the normal equations; NaN if the Gram matrix is not finite.
fn normal<F: Entry>(a: &Matrix<F>, b: &Matrix<F>, regularizer: f64) -> Result<Matrix<F>> {
    let adjoint = a.adjoint();
    let is_tall = a.rows >= a.columns;
    let mut gram = if is_tall { product(&adjoint, a) } else { product(a, &adjoint) };
    for d in 0..gram.rows {
        gram.put(d, d, gram.at(d, d).plus(F::from_real(regularizer)));
    }
    if gram.values.iter().any(|v| !v.modulus().is_finite()) {
        let nothing = vec![F::from_real(f64::NAN); a.columns * b.columns];
        return Ok(Matrix::new(a.columns, b.columns, nothing));
    }
    let Some(factor) = cholesky(&gram) else {
        invalid!(
            "Input matrix was rank deficient or ill-conditioned. Try setting fast=False or provide a larger \
             l2_regularizer > 0."
        );
    };
    let solved = |b: &Matrix<F>| {
        let half = triangular_solve(&factor, b, true, false);
        triangular_solve(&factor.adjoint(), &half, false, false)
    };
    Ok(if is_tall { solved(&product(&adjoint, b)) } else { product(&adjoint, &solved(b)) })
}

/// Returns the least-squares solutions of minimal norm. Singular values up to `least` times the greatest one times the
/// larger dimension of the matrix count as 0. If the matrix has no singular values, the solution is zero.
fn shortest<F: Entry>(a: &Matrix<F>, b: &Matrix<F>, least: f64) -> Matrix<F> {
    let zeros = Matrix::new(a.columns, b.columns, vec![F::ZERO; a.columns * b.columns]);
    let Some((sizes, u, v)) = svd(a) else { return zeros };
    let bound = sizes.first().copied().unwrap_or(0.0) * least * a.rows.max(a.columns) as f64;
    let mut scaled = product(&u.adjoint(), b).part(sizes.len(), b.columns);
    for (row, &size) in sizes.iter().enumerate() {
        for column in 0..b.columns {
            let value = scaled.at(row, column).over(F::from_real(size));
            scaled.put(row, column, if size > bound { value } else { F::ZERO });
        }
    }
    product(&v.part(a.columns, sizes.len()), &scaled)
}

fn product<F: Entry>(a: &Matrix<F>, b: &Matrix<F>) -> Matrix<F> {
    let mut out = Matrix::new(a.rows, b.columns, vec![F::ZERO; a.rows * b.columns]);
    for i in 0..a.rows {
        for k in 0..a.columns {
            for j in 0..b.columns {
                out.put(i, j, out.at(i, j).plus(a.at(i, k).times(b.at(k, j))));
            }
        }
    }
    out
}
