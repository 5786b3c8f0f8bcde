//! Linear algebra on batches of matrices.

use super::broadcast::{arrived, constant, number, reduce_leading_gradients};
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};
use crate::tensor::Tensor;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Cholesky",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: {double, float, half, complex64, complex128}"],
        infer: square,
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchCholesky",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: {double, float}"],
        infer: square,
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixInverse",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["adjoint: bool = false", "T: {double, float, half, complex64, complex128}"],
        infer: square,
        gradient: Gradient::Defined(inverse_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchMatrixInverse",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["adjoint: bool = false", "T: {double, float}"],
        infer: square,
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixDeterminant",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: {half, float, double, complex64, complex128}"],
        infer: |infer| scalars(infer),
        gradient: Gradient::Defined(determinant_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchMatrixDeterminant",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: {float, double, complex64, complex128}"],
        infer: |infer| scalars(infer),
        ..OpDef::NEW
    },
    OpDef {
        name: "LogMatrixDeterminant",
        inputs: &["input: T"],
        outputs: &["sign: T", "log_abs_determinant: T"],
        attrs: &["T: {half, float, double, complex64, complex128}"],
        infer: |infer| scalars(infer),
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixSolve",
        inputs: &["matrix: T", "rhs: T"],
        outputs: &["output: T"],
        attrs: &["adjoint: bool = false", "T: {double, float, half, complex64, complex128}"],
        infer: solution,
        gradient: Gradient::Defined(solve_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchMatrixSolve",
        inputs: &["matrix: T", "rhs: T"],
        outputs: &["output: T"],
        attrs: &["adjoint: bool = false", "T: {double, float}"],
        infer: solution,
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixSolveLs",
        inputs: &["matrix: T", "rhs: T", "l2_regularizer: double"],
        outputs: &["output: T"],
        attrs: &["T: {double, float, half, complex64, complex128}", "fast: bool = true"],
        infer: best_solution,
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixTriangularSolve",
        inputs: &["matrix: T", "rhs: T"],
        outputs: &["output: T"],
        attrs: &[
            "lower: bool = true",
            "adjoint: bool = false",
            "T: {bfloat16, double, float, half, complex64, complex128}",
        ],
        infer: broadcast_solution,
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchMatrixTriangularSolve",
        inputs: &["matrix: T", "rhs: T"],
        outputs: &["output: T"],
        attrs: &["lower: bool = true", "adjoint: bool = false", "T: {double, float}"],
        infer: solution,
        ..OpDef::NEW
    },
    OpDef {
        name: "BandedTriangularSolve",
        inputs: &["matrix: T", "rhs: T"],
        outputs: &["output: T"],
        attrs: &[
            "lower: bool = true",
            "adjoint: bool = false",
            "T: {double, float, half, complex64, complex128}",
        ],
        infer: |infer| {
            let Some((_, [_, rows])) = matrices(infer, 0)? else { return Ok(()) };
            let Some((_, [_, columns])) = matrices(infer, 1)? else { return Ok(()) };
            let [a, b] = [infer.input(0), infer.input(1)];
            if let (Some([a @ .., _, _]), Some([b @ .., _, _])) = (a.dims(), b.dims())
                && a == b
            {
                infer.set(0, shaped(a, &[rows, columns]));
            }
            Ok(())
        },
        gradient: Gradient::Defined(banded_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "Eig",
        inputs: &["input: T"],
        outputs: &["e: Tout", "v: Tout"],
        attrs: &[
            "compute_v: bool = true",
            "T: {float, double, complex64, complex128}",
            "Tout: {complex64, complex128}",
        ],
        infer: eigen,
        ..OpDef::NEW
    },
    OpDef {
        name: "Qr",
        inputs: &["input: T"],
        outputs: &["q: T", "r: T"],
        attrs: &["full_matrices: bool = false", "T: {double, float, half, complex64, complex128}"],
        infer: qr,
        ..OpDef::NEW
    },
    OpDef {
        name: "SelfAdjointEigV2",
        inputs: &["input: T"],
        outputs: &["e: T", "v: T"],
        attrs: &["compute_v: bool = true", "T: {double, float, half, complex64, complex128}"],
        infer: eigen,
        ..OpDef::NEW
    },
    OpDef {
        name: "Svd",
        inputs: &["input: T"],
        outputs: &["s: T", "u: T", "v: T"],
        attrs: &[
            "compute_uv: bool = true",
            "full_matrices: bool = false",
            "T: {double, float, half, complex64, complex128}",
        ],
        infer: svd,
        ..OpDef::NEW
    },
    OpDef {
        name: "Lu",
        inputs: &["input: T"],
        outputs: &["lu: T", "p: output_idx_type"],
        attrs: &[
            "T: {double, float, half, complex64, complex128}",
            "output_idx_type: {int32, int64} = int32",
        ],
        infer: lu,
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchSelfAdjointEigV2",
        inputs: &["input: T"],
        outputs: &["e: T", "v: T"],
        attrs: &["compute_v: bool = true", "T: {double, float}"],
        infer: eigen,
        ..OpDef::NEW
    },
    OpDef {
        name: "SelfAdjointEig",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: {double, float, half}"],
        infer: joined_eigen,
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchSelfAdjointEig",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: {double, float}"],
        infer: joined_eigen,
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchSvd",
        inputs: &["input: T"],
        outputs: &["s: T", "u: T", "v: T"],
        attrs: &[
            "compute_uv: bool = true",
            "full_matrices: bool = false",
            "T: {double, float, complex64, complex128}",
        ],
        infer: svd,
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchMatrixSolveLs",
        inputs: &["matrix: T", "rhs: T", "l2_regularizer: double"],
        outputs: &["output: T"],
        attrs: &["T: {double, float}", "fast: bool = true"],
        infer: best_solution,
        ..OpDef::NEW
    },
    OpDef {
        name: "CholeskyGrad",
        inputs: &["l: T", "grad: T"],
        outputs: &["output: T"],
        attrs: &["T: {half, float, double}"],
        infer: square,
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchCholeskyGrad",
        inputs: &["l: T", "grad: T"],
        outputs: &["output: T"],
        attrs: &["T: {float, double}"],
        infer: square,
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixSquareRoot",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: {double, float, half, complex64, complex128}"],
        infer: square,
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixLogarithm",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: {complex64, complex128}"],
        infer: square,
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixExponential",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: {double, float, half, complex64, complex128}"],
        infer: square,
        ..OpDef::NEW
    },
    OpDef {
        name: "TridiagonalMatMul",
        inputs: &["superdiag: T", "maindiag: T", "subdiag: T", "rhs: T"],
        outputs: &["output: T"],
        attrs: &["T: {double, float, complex64, complex128}"],
        infer: |infer| {
            let shape = infer.input(3);
            infer.set(0, shape);
            Ok(())
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "TridiagonalSolve",
        inputs: &["diagonals: T", "rhs: T"],
        outputs: &["output: T"],
        attrs: &[
            "partial_pivoting: bool = true",
            "perturb_singular: bool = false",
            "T: {double, float, complex64, complex128}",
        ],
        infer: |infer| {
            let shape = infer.input(1);
            infer.set(0, shape);
            Ok(())
        },
        ..OpDef::NEW
    },
];

/// Returns the sizes of the batch axes of input `input`, and the numbers of rows and columns of its matrices.
fn matrices(infer: &Infer<'_>, input: usize) -> Result<Option<(Vec<Dim>, [Dim; 2])>> {
    match infer.input(input).dims() {
        None => Ok(None),
        Some([batch @ .., rows, columns]) => Ok(Some((batch.to_vec(), [*rows, *columns]))),
        Some(dims) => crate::invalid!("Shape must be at least rank 2 but is rank {}", dims.len()),
    }
}

fn shaped(batch: &[Dim], inner: &[Dim]) -> PartialShape {
    PartialShape::of_dims(batch.iter().chain(inner).copied())
}

/// Returns the sizes of the batch axes of input 0, and the number of rows of its square matrices.
fn squares(infer: &Infer<'_>) -> Result<Option<(Vec<Dim>, Dim)>> {
    let Some((batch, [rows, columns])) = matrices(infer, 0)? else { return Ok(None) };
    let size = PartialShape::vector(rows).merge(&PartialShape::vector(columns))?.dim(0);
    Ok(Some((batch, size)))
}

fn square(infer: &mut Infer<'_>) -> Result<()> {
    if let Some((batch, n)) = squares(infer)? {
        infer.set(0, shaped(&batch, &[n, n]));
    }
    Ok(())
}

fn scalars(infer: &mut Infer<'_>) -> Result<()> {
    if let Some((batch, _)) = squares(infer)? {
        infer.set_all(shaped(&batch, &[]));
    }
    Ok(())
}

fn solution(infer: &mut Infer<'_>) -> Result<()> {
    let Some((batch, n)) = squares(infer)? else { return Ok(()) };
    let Some((other, [rows, columns])) = matrices(infer, 1)? else { return Ok(()) };
    let batch = shaped(&batch, &[n]).merge(&shaped(&other, &[rows]))?;
    infer.set(0, PartialShape::of_dims(batch.dims().unwrap_or_default().iter().copied().chain([columns])));
    Ok(())
}

fn best_solution(infer: &mut Infer<'_>) -> Result<()> {
    let Some((batch, [rows, unknowns])) = matrices(infer, 0)? else { return Ok(()) };
    let Some((other, [equations, columns])) = matrices(infer, 1)? else { return Ok(()) };
    let batch = shaped(&batch, &[rows]).merge(&shaped(&other, &[equations]))?;
    let batch = batch.dims().unwrap_or_default().split_last().map_or(&[][..], |(_, batch)| batch);
    infer.set(0, shaped(batch, &[unknowns, columns]));
    Ok(())
}

fn broadcast_solution(infer: &mut Infer<'_>) -> Result<()> {
    let Some((batch, n)) = squares(infer)? else { return Ok(()) };
    let Some((other, [rows, columns])) = matrices(infer, 1)? else { return Ok(()) };
    let rows = PartialShape::vector(n).merge(&PartialShape::vector(rows))?.dim(0);
    let batch = PartialShape::broadcast(&shaped(&batch, &[]), &shaped(&other, &[]))?;
    infer.set(0, shaped(batch.dims().unwrap_or_default(), &[rows, columns]));
    Ok(())
}

/// Returns the smaller of two sizes; `None` if either size is unknown.
fn least(a: Dim, b: Dim) -> Dim {
    a.zip(b).map(|(a, b)| a.min(b))
}

fn qr(infer: &mut Infer<'_>) -> Result<()> {
    let Some((batch, [m, n])) = matrices(infer, 0)? else { return Ok(()) };
    let inner = if infer.attr::<bool>("full_matrices")? { m } else { least(m, n) };
    infer.set(0, shaped(&batch, &[m, inner]));
    infer.set(1, shaped(&batch, &[inner, n]));
    Ok(())
}

fn eigen(infer: &mut Infer<'_>) -> Result<()> {
    let Some((batch, n)) = squares(infer)? else { return Ok(()) };
    infer.set(0, shaped(&batch, &[n]));
    if infer.attr::<bool>("compute_v")? {
        infer.set(1, shaped(&batch, &[n, n]));
    }
    Ok(())
}

/// Infers the output shape of SelfAdjointEig: one row of eigenvalues above the matrix of eigenvectors.
fn joined_eigen(infer: &mut Infer<'_>) -> Result<()> {
    if let Some((batch, n)) = squares(infer)? {
        infer.set(0, shaped(&batch, &[n.and_then(|n| n.checked_add(1)), n]));
    }
    Ok(())
}

fn svd(infer: &mut Infer<'_>) -> Result<()> {
    let Some((batch, [m, n])) = matrices(infer, 0)? else { return Ok(()) };
    let p = least(m, n);
    infer.set(0, shaped(&batch, &[p]));
    if !infer.attr::<bool>("compute_uv")? {
        return Ok(());
    }
    let full = infer.attr::<bool>("full_matrices")?;
    infer.set(1, shaped(&batch, &[m, if full { m } else { p }]));
    infer.set(2, shaped(&batch, &[n, if full { n } else { p }]));
    Ok(())
}

fn lu(infer: &mut Infer<'_>) -> Result<()> {
    let Some((batch, n)) = squares(infer)? else { return Ok(()) };
    infer.set(0, shaped(&batch, &[n, n]));
    infer.set(1, shaped(&batch, &[n]));
    Ok(())
}

/// Adds a batched matrix product, in which `adjoint_x` and `adjoint_y` replace a factor by its adjoint.
fn product(scope: &Scope, x: Output, y: Output, adjoint_x: bool, adjoint_y: bool) -> Output {
    scope.op("BatchMatMulV2").input(x).input(y).attr("adj_x", adjoint_x).attr("adj_y", adjoint_y).output()
}

fn inverse_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let (inverse, dz) = (forward.output(0), arrived(forward, dz)?);
    let adjoint = forward.attr::<bool>("adjoint")?;
    // With the attribute `adjoint`, the op returns the adjoint of the inverse, so the gradient formula uses the adjoint
    // too.
    let gradient = match adjoint {
        false => product(scope, inverse, product(scope, dz, inverse, false, true), true, false),
        true => product(scope, inverse, product(scope, dz, inverse, true, false), false, false),
    };
    Ok(vec![Some(scope.neg(gradient))])
}

fn determinant_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
) -> Result<Vec<Option<Output>>> {
    let dz = arrived(forward, dz)?;
    let inverse = scope.op("MatrixInverse").input(forward.input(0)).attr("adjoint", true).output();
    let scale = scope.mul(dz, scope.conj(forward.output(0)));
    let scale = scope.expand_dims(scope.expand_dims(scale, -1), -1);
    Ok(vec![Some(scope.mul(scale, inverse))])
}

fn solve_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let (a, x, dz) = (forward.input(0), forward.output(0), arrived(forward, dz)?);
    let adjoint = forward.attr::<bool>("adjoint")?;
    let db = scope.op("MatrixSolve").input(a).input(dz).attr("adjoint", !adjoint).output();
    let da = match adjoint {
        false => product(scope, db, x, false, true),
        true => product(scope, x, db, false, true),
    };
    Ok(vec![Some(scope.neg(da)), Some(db)])
}

/// Gradient of the solution of systems with bands: the diagonals of the gradient by the whole matrix.
fn banded_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let (a, x, dz) = (forward.input(0), forward.output(0), arrived(forward, dz)?);
    let (lower, adjoint) = (forward.attr::<bool>("lower")?, forward.attr::<bool>("adjoint")?);
    let solve = scope.op("BandedTriangularSolve").input(a).input(dz);
    let db = solve.attr("lower", lower).attr("adjoint", !adjoint).output();
    let [.., Some(bands), _] = scope.shape(a).dims().unwrap_or_default()[..] else {
        return Err(Error::unimplemented(format!(
            "the gradient of {} needs the number of bands when the graph is built",
            forward.node.name
        )));
    };
    let da = if adjoint { product(scope, x, db, false, true) } else { product(scope, db, x, false, true) };
    let others = bands as i32 - 1;
    let k = constant(scope, Tensor::vector(&if lower { [-others, 0] } else { [0, others] })?);
    let padding = number(scope, scope.dtype(a), 0.0)?;
    let part = scope.op("MatrixDiagPartV3").input(scope.neg(da)).input(k).input(padding);
    let part = part.attr("align", "LEFT_RIGHT").output();
    reduce_leading_gradients(scope, [a, forward.input(1)], [Some(part), Some(db)], 2)
}
