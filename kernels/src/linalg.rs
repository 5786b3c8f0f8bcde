//! Linear algebra on batches of matrices, computed in double precision.

mod banded;
mod decompose;
mod function;
mod least_squares;
pub(crate) mod matrix;
mod tridiagonal;

use crate::numeric::dispatch::COMPLEX;
use crate::plan::linalg::{check_systems, matrices, square, triangular_plan};
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result, invalid};
use graph::DType::{self, *};
use graph::{Shape, Tensor};
use matrix::{Entry, Matrix, read, write};
use num_complex::Complex;

pub(crate) const FRACTIONS: &[(&str, &[DType])] = &[("T", &[Float, Double, Complex64, Complex128])];
const WITH_HALF: &[(&str, &[DType])] = &[("T", &[Float, Double, Half, Complex64, Complex128])];

/// Defines a kernel whose function is generic over the type of the matrix entries in the computation.
macro_rules! kernel {
    ($op:literal, $types:expr, $init:ident => $make:expr) => {
        KernelDef::of($op, $types, |$init| {
            if COMPLEX.contains(&$init.input_type(0)) {
                type F = Complex<f64>;
                let compute = $make;
                Kernel::sync(move |ctx| compute(ctx, std::marker::PhantomData::<F>))
            } else {
                type F = f64;
                let compute = $make;
                Kernel::sync(move |ctx| compute(ctx, std::marker::PhantomData::<F>))
            }
        })
    };
}

/// A marker that selects the entry type of a kernel's function.
type EntryType<F> = std::marker::PhantomData<F>;

pub(super) const KERNELS: &[KernelDef] = &[
    kernel!("Cholesky", WITH_HALF, _i => |ctx: &mut KernelContext<'_>, _: EntryType<F>| cholesky::<F>(ctx)),
    kernel!("BatchCholesky", WITH_HALF, _i => |ctx: &mut KernelContext<'_>, _: EntryType<F>| cholesky::<F>(ctx)),
    kernel!("MatrixInverse", WITH_HALF, i => {
        let adjoint: bool = i.attr("adjoint")?;
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| inverse::<F>(ctx, adjoint)
    }),
    kernel!("BatchMatrixInverse", WITH_HALF, i => {
        let adjoint: bool = i.attr("adjoint")?;
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| inverse::<F>(ctx, adjoint)
    }),
    kernel!("MatrixDeterminant", WITH_HALF, _i => |ctx: &mut KernelContext<'_>, _: EntryType<F>| determinant::<F>(ctx)),
    kernel!("BatchMatrixDeterminant", WITH_HALF, _i => |ctx: &mut KernelContext<'_>, _: EntryType<F>| determinant::<F>(ctx)),
    kernel!("LogMatrixDeterminant", WITH_HALF, _i => |ctx: &mut KernelContext<'_>, _: EntryType<F>| log_determinant::<F>(ctx)),
    kernel!("MatrixSolve", WITH_HALF, i => {
        let adjoint: bool = i.attr("adjoint")?;
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| solve::<F>(ctx, adjoint)
    }),
    kernel!("BatchMatrixSolve", WITH_HALF, i => {
        let adjoint: bool = i.attr("adjoint")?;
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| solve::<F>(ctx, adjoint)
    }),
    kernel!("MatrixSolveLs", FRACTIONS, i => {
        let fast: bool = i.attr("fast")?;
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| least_squares::solve::<F>(ctx, fast)
    }),
    kernel!("MatrixTriangularSolve", &[("T", &[Float, Double, Half, BFloat16, Complex64, Complex128])], i => {
        let (lower, adjoint): (bool, bool) = (i.attr("lower")?, i.attr("adjoint")?);
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| triangular_solve::<F>(ctx, lower, adjoint)
    }),
    kernel!("BatchMatrixTriangularSolve", FRACTIONS, i => {
        let (lower, adjoint): (bool, bool) = (i.attr("lower")?, i.attr("adjoint")?);
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| triangular_solve::<F>(ctx, lower, adjoint)
    }),
    kernel!("BandedTriangularSolve", FRACTIONS, i => {
        let (lower, adjoint): (bool, bool) = (i.attr("lower")?, i.attr("adjoint")?);
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| banded::solve::<F>(ctx, lower, adjoint)
    }),
    KernelDef::of("Eig", FRACTIONS, |i| {
        let (vectors, dtype) = (i.attr("compute_v")?, i.output_type(0));
        let is_double = |dtype| matches!(dtype, Double | Complex128);
        if is_double(i.input_type(0)) != is_double(dtype) {
            invalid!("Invalid output dtype {dtype} for matrices of {}", i.input_type(0));
        }
        Kernel::sync(move |ctx| eig(ctx, vectors, dtype))
    }),
    kernel!("Qr", WITH_HALF, i => {
        let full: bool = i.attr("full_matrices")?;
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| qr::<F>(ctx, full)
    }),
    kernel!("SelfAdjointEigV2", WITH_HALF, i => {
        let vectors: bool = i.attr("compute_v")?;
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| self_adjoint_eig::<F>(ctx, vectors)
    }),
    kernel!("Svd", WITH_HALF, i => {
        let (vectors, full): (bool, bool) = (i.attr("compute_uv")?, i.attr("full_matrices")?);
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| svd::<F>(ctx, vectors, full)
    }),
    kernel!("BatchSelfAdjointEigV2", FRACTIONS, i => {
        let vectors: bool = i.attr("compute_v")?;
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| self_adjoint_eig::<F>(ctx, vectors)
    }),
    KernelDef::of("SelfAdjointEig", &[("T", &[Float, Double])], |_| Kernel::sync(joined_eig)),
    KernelDef::of("BatchSelfAdjointEig", &[("T", &[Float, Double])], |_| Kernel::sync(joined_eig)),
    kernel!("BatchSvd", FRACTIONS, i => {
        let (vectors, full): (bool, bool) = (i.attr("compute_uv")?, i.attr("full_matrices")?);
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| svd::<F>(ctx, vectors, full)
    }),
    kernel!("BatchMatrixSolveLs", &[("T", &[Float, Double])], i => {
        let fast: bool = i.attr("fast")?;
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| least_squares::solve::<F>(ctx, fast)
    }),
    KernelDef::of("CholeskyGrad", &[("T", &[Float, Double])], |_| Kernel::sync(cholesky_gradient)),
    KernelDef::of("BatchCholeskyGrad", &[("T", &[Float, Double])], |_| Kernel::sync(cholesky_gradient)),
    kernel!("MatrixSquareRoot", FRACTIONS, _i => |ctx: &mut KernelContext<'_>, _: EntryType<F>| {
        let batch = MatrixBatch::<F>::square(ctx.input(0)?)?;
        map_matrices(ctx, &batch, |m| Ok(function::square_root(m)))
    }),
    kernel!("MatrixLogarithm", &[("T", COMPLEX)], _i => |ctx: &mut KernelContext<'_>, _: EntryType<F>| {
        let batch = MatrixBatch::<F>::square(ctx.input(0)?)?;
        map_matrices(ctx, &batch, |m| Ok(function::logarithm(m)))
    }),
    kernel!("MatrixExponential", FRACTIONS, _i => |ctx: &mut KernelContext<'_>, _: EntryType<F>| {
        let batch = MatrixBatch::<F>::square(ctx.input(0)?)?;
        map_matrices(ctx, &batch, |m| Ok(function::exponential(m)))
    }),
    kernel!("TridiagonalMatMul", FRACTIONS, _i => |ctx: &mut KernelContext<'_>, _: EntryType<F>| tridiagonal::multiply::<F>(ctx)),
    kernel!("TridiagonalSolve", FRACTIONS, i => {
        let has_pivots: bool = i.attr("partial_pivoting")?;
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| tridiagonal::solve::<F>(ctx, has_pivots)
    }),
    kernel!("Lu", WITH_HALF, i => {
        let index = i.output_type(1);
        move |ctx: &mut KernelContext<'_>, _: EntryType<F>| lu::<F>(ctx, index)
    }),
];

/// A batch of matrices of one size.
struct MatrixBatch<F> {
    sizes: Vec<usize>,
    matrices: Vec<Matrix<F>>,
    rows: usize,
    columns: usize,
}

impl<F: Entry> MatrixBatch<F> {
    fn of(input: &Tensor) -> Result<MatrixBatch<F>> {
        let (sizes, [rows, columns]) = matrices(input.shape())?;
        let values: Vec<F> = read(input)?;
        let count = sizes.iter().product();
        let size = rows * columns;
        let matrix = |i: usize| Matrix::new(rows, columns, values[i * size..(i + 1) * size].to_vec());
        Ok(MatrixBatch { sizes: sizes.to_vec(), matrices: (0..count).map(matrix).collect(), rows, columns })
    }

    fn square(input: &Tensor) -> Result<MatrixBatch<F>> {
        square(input.shape())?;
        MatrixBatch::of(input)
    }

    fn shape(&self, inner: &[usize]) -> Result<Shape> {
        Ok(Shape::new(&[&self.sizes[..], inner].concat())?)
    }
}

/// Sets an output to the concatenated results of all matrices.
fn set_matrices<F: Entry>(
    ctx: &mut KernelContext<'_>,
    at: usize,
    dtype: DType,
    shape: Shape,
    values: &[F],
) -> Result<()> {
    let out = write(dtype, shape, values)?;
    ctx.set_output(at, out);
    Ok(())
}

/// Outputs the results of a function of each matrix; the results have the size of the operands.
fn map_matrices<F: Entry>(
    ctx: &mut KernelContext<'_>,
    batch: &MatrixBatch<F>,
    apply: impl Fn(&Matrix<F>) -> Result<Matrix<F>>,
) -> Result<()> {
    let mut values = Vec::new();
    for matrix in &batch.matrices {
        values.extend(apply(matrix)?.values);
    }
    let (dtype, shape) = (ctx.input(0)?.dtype(), batch.shape(&[batch.rows, batch.columns])?);
    set_matrices(ctx, 0, dtype, shape, &values)
}

fn cholesky<F: Entry>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let batch = MatrixBatch::<F>::square(ctx.input(0)?)?;
    // A matrix that is not positive definite gives NaN, like in TensorFlow.
    map_matrices(ctx, &batch, |m| {
        Ok(decompose::cholesky(m).unwrap_or_else(|| {
            let mut factor = Matrix::new(m.rows, m.rows, vec![F::ZERO; m.rows * m.rows]);
            (0..m.rows).for_each(|i| (0..=i).for_each(|j| factor.put(i, j, F::from_real(f64::NAN))));
            factor
        }))
    })
}

fn inverse<F: Entry>(ctx: &mut KernelContext<'_>, adjoint: bool) -> Result<()> {
    let batch = MatrixBatch::<F>::square(ctx.input(0)?)?;
    map_matrices(ctx, &batch, |m| {
        let lu = decompose::Lu::of(if adjoint { m.adjoint() } else { m.clone() });
        if lu.is_singular() {
            invalid!("Input is not invertible.");
        }
        Ok(lu.solve(&Matrix::identity(m.rows, m.rows)))
    })
}

fn determinant<F: Entry>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let batch = MatrixBatch::<F>::square(ctx.input(0)?)?;
    let values: Vec<F> = batch.matrices.iter().map(|m| decompose::Lu::of(m.clone()).determinant()).collect();
    let (dtype, shape) = (ctx.input(0)?.dtype(), batch.shape(&[])?);
    set_matrices(ctx, 0, dtype, shape, &values)
}

fn log_determinant<F: Entry>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let batch = MatrixBatch::<F>::square(ctx.input(0)?)?;
    let (mut signs, mut logs) = (Vec::new(), Vec::new());
    for matrix in &batch.matrices {
        let (sign, log) = decompose::Lu::of(matrix.clone()).log_determinant();
        signs.push(sign);
        logs.push(F::from_real(log));
    }
    let dtype = ctx.input(0)?.dtype();
    set_matrices(ctx, 0, dtype, batch.shape(&[])?, &signs)?;
    set_matrices(ctx, 1, dtype, batch.shape(&[])?, &logs)
}

fn solve<F: Entry>(ctx: &mut KernelContext<'_>, adjoint: bool) -> Result<()> {
    check_systems(ctx.shape(0)?, ctx.shape(1)?)?;
    let (a, b) = (MatrixBatch::<F>::of(ctx.input(0)?)?, MatrixBatch::<F>::of(ctx.input(1)?)?);
    let mut values = Vec::new();
    for (a, b) in a.matrices.iter().zip(&b.matrices) {
        let lu = decompose::Lu::of(if adjoint { a.adjoint() } else { a.clone() });
        if lu.is_singular() {
            invalid!("Input matrix is not invertible.");
        }
        values.extend(lu.solve(b).values);
    }
    let (dtype, shape) = (ctx.input(0)?.dtype(), ctx.input(1)?.shape().clone());
    set_matrices(ctx, 0, dtype, shape, &values)
}

fn triangular_solve<F: Entry>(ctx: &mut KernelContext<'_>, lower: bool, adjoint: bool) -> Result<()> {
    let plan = triangular_plan(ctx.shape(0)?, ctx.shape(1)?)?;
    let (a, b) = (MatrixBatch::<F>::of(ctx.input(0)?)?, MatrixBatch::<F>::of(ctx.input(1)?)?);
    let repeats = plan.repeats();
    let mut values = Vec::new();
    plan.walk(0, plan.shape().num_elements(), |_, len, [i, j]| {
        for k in 0..len {
            let a = &a.matrices[if repeats[0] { i } else { i + k }];
            let b = &b.matrices[if repeats[1] { j } else { j + k }];
            let (a, lower) = if adjoint { (a.adjoint(), !lower) } else { (a.clone(), lower) };
            values.extend(decompose::triangular_solve(&a, b, lower, false).values);
        }
    });
    let shape = Shape::new(&[&plan.shape()[..], &[b.rows, b.columns]].concat())?;
    let dtype = ctx.input(0)?.dtype();
    set_matrices(ctx, 0, dtype, shape, &values)
}

fn qr<F: Entry>(ctx: &mut KernelContext<'_>, full: bool) -> Result<()> {
    let batch = MatrixBatch::<F>::of(ctx.input(0)?)?;
    let (rows, columns) = (batch.rows, batch.columns);
    let inner = if full { rows } else { rows.min(columns) };
    let (mut qs, mut rs) = (Vec::new(), Vec::new());
    for matrix in &batch.matrices {
        let (q, r) = decompose::qr(matrix);
        qs.extend(q.part(rows, inner).values);
        rs.extend(r.part(inner, columns).values);
    }
    let dtype = ctx.input(0)?.dtype();
    set_matrices(ctx, 0, dtype, batch.shape(&[rows, inner])?, &qs)?;
    set_matrices(ctx, 1, dtype, batch.shape(&[inner, columns])?, &rs)
}

fn not_converged() -> Error {
    Error::invalid("The decomposition was not successful. The input might not be valid.")
}

fn self_adjoint_eig<F: Entry>(ctx: &mut KernelContext<'_>, vectors: bool) -> Result<()> {
    let batch = MatrixBatch::<F>::square(ctx.input(0)?)?;
    let (mut values, mut all) = (Vec::new(), Vec::new());
    for matrix in &batch.matrices {
        let (eigenvalues, v) = decompose::self_adjoint(matrix).ok_or_else(not_converged)?;
        values.extend(eigenvalues.into_iter().map(F::from_real));
        all.extend(v.values);
    }
    let (dtype, n) = (ctx.input(0)?.dtype(), batch.rows);
    set_matrices(ctx, 0, dtype, batch.shape(&[n])?, &values)?;
    match vectors {
        true => set_matrices(ctx, 1, dtype, batch.shape(&[n, n])?, &all),
        false => set_matrices(ctx, 1, dtype, Shape::scalar(), &[F::ZERO]),
    }
}

/// `Eig`: outputs eigenvalues and, if `vectors`, eigenvectors of length one as columns.
fn eig(ctx: &mut KernelContext<'_>, vectors: bool, dtype: DType) -> Result<()> {
    let batch = MatrixBatch::<Complex<f64>>::square(ctx.input(0)?)?;
    let (mut values, mut all) = (Vec::new(), Vec::new());
    for matrix in &batch.matrices {
        ctx.check_cancelled()?;
        let is_finite = matrix.values.iter().all(|v| v.re.is_finite() && v.im.is_finite());
        let Some((eigenvalues, v)) = function::eigen(matrix).filter(|_| is_finite) else {
            invalid!("Eigen decomposition was not successful. The input might not be valid.");
        };
        values.extend(eigenvalues);
        all.extend(v.values);
    }
    let n = batch.rows;
    set_matrices(ctx, 0, dtype, batch.shape(&[n])?, &values)?;
    match vectors {
        true => set_matrices(ctx, 1, dtype, batch.shape(&[n, n])?, &all),
        false => set_matrices(ctx, 1, dtype, Shape::scalar(), &[Complex::<f64>::default()]),
    }
}

/// `SelfAdjointEig`: outputs the eigenvalues as the first row, and the eigenvectors as the columns below it.
fn joined_eig(ctx: &mut KernelContext<'_>) -> Result<()> {
    let batch = MatrixBatch::<f64>::square(ctx.input(0)?)?;
    let mut all = Vec::new();
    for matrix in &batch.matrices {
        let (eigenvalues, v) = decompose::self_adjoint(matrix).ok_or_else(not_converged)?;
        all.extend(eigenvalues);
        all.extend(v.values);
    }
    let dtype = ctx.input(0)?.dtype();
    set_matrices(ctx, 0, dtype, batch.shape(&[batch.rows + 1, batch.rows])?, &all)
}

/// `CholeskyGrad`: outputs the gradient with respect to a symmetric matrix, from the matrix's Cholesky factor and the
/// gradient with respect to that factor.
fn cholesky_gradient(ctx: &mut KernelContext<'_>) -> Result<()> {
    if ctx.shape(0)? != ctx.shape(1)? {
        invalid!("Inputs must be of the same shape, got {} and {}", ctx.shape(0)?, ctx.shape(1)?);
    }
    let (factors, gradients) =
        (MatrixBatch::<f64>::square(ctx.input(0)?)?, MatrixBatch::<f64>::square(ctx.input(1)?)?);
    let n = factors.rows;
    let mut all = Vec::new();
    for (factor, gradient) in factors.matrices.iter().zip(&gradients.matrices) {
        // Only the lower triangles are read.
        let lower = |m: &Matrix<f64>| {
            let values = (0..n).flat_map(|i| (0..n).map(move |j| if j <= i { m.at(i, j) } else { 0.0 }));
            Matrix::new(n, n, values.collect())
        };
        let (l, by_l) = (lower(factor), lower(gradient));
        // The matrix `inner` is the lower triangle of `lᵀ by_l`, with half of the diagonal.
        let mut inner = Matrix::new(n, n, vec![0.0; n * n]);
        for i in 0..n {
            for j in 0..=i {
                let sum: f64 = (i..n).map(|k| l.at(k, i) * by_l.at(k, j)).sum();
                inner.put(i, j, if i == j { 0.5 * sum } else { sum });
            }
        }
        // The result is the symmetric part of `l⁻ᵀ inner l⁻¹`.
        let upper = l.adjoint();
        let left = decompose::triangular_solve(&upper, &inner, false, false);
        let whole = decompose::triangular_solve(&upper, &left.adjoint(), false, false).adjoint();
        all.extend((0..n * n).map(|at| 0.5 * (whole.at(at / n, at % n) + whole.at(at % n, at / n))));
    }
    let dtype = ctx.input(0)?.dtype();
    set_matrices(ctx, 0, dtype, factors.shape(&[n, n])?, &all)
}

fn svd<F: Entry>(ctx: &mut KernelContext<'_>, vectors: bool, full: bool) -> Result<()> {
    let batch = MatrixBatch::<F>::of(ctx.input(0)?)?;
    let (m, n) = (batch.rows, batch.columns);
    let p = m.min(n);
    let (mut s, mut us, mut vs) = (Vec::new(), Vec::new(), Vec::new());
    let (left, right) = if full { (m, n) } else { (p, p) };
    for matrix in &batch.matrices {
        let (values, u, v) = decompose::svd(matrix).ok_or_else(not_converged)?;
        s.extend(values.into_iter().map(F::from_real));
        us.extend(u.part(m, left).values);
        vs.extend(v.part(n, right).values);
    }
    let dtype = ctx.input(0)?.dtype();
    set_matrices(ctx, 0, dtype, batch.shape(&[p])?, &s)?;
    if !vectors {
        // If no vectors are requested, outputs 1 and 2 are scalars, whose value TensorFlow leaves unspecified.
        set_matrices(ctx, 1, dtype, Shape::scalar(), &[F::ZERO])?;
        return set_matrices(ctx, 2, dtype, Shape::scalar(), &[F::ZERO]);
    }
    set_matrices(ctx, 1, dtype, batch.shape(&[m, left])?, &us)?;
    set_matrices(ctx, 2, dtype, batch.shape(&[n, right])?, &vs)
}

fn lu<F: Entry>(ctx: &mut KernelContext<'_>, index: DType) -> Result<()> {
    let batch = MatrixBatch::<F>::square(ctx.input(0)?)?;
    let (mut factors, mut orders) = (Vec::new(), Vec::new());
    for matrix in &batch.matrices {
        let lu = decompose::Lu::of(matrix.clone());
        if lu.is_singular() {
            invalid!("Input is not invertible.");
        }
        orders.extend(lu.order.iter().map(|&i| i as i64));
        factors.extend(lu.factors.values);
    }
    let (dtype, n) = (ctx.input(0)?.dtype(), batch.rows);
    let shape = batch.shape(&[n])?;
    let order = match index {
        Int64 => Tensor::from_slice(&orders, shape)?,
        _ => Tensor::from_slice(&orders.iter().map(|&i| i as i32).collect::<Vec<_>>(), shape)?,
    };
    set_matrices(ctx, 0, dtype, batch.shape(&[n, n])?, &factors)?;
    ctx.set_output(1, order);
    Ok(())
}
