//! Inputs for linear algebra: batches of matrices.

use super::{Fallible, Random};
use graph::{DType, Shape, Tensor};
use kernels::testing::run_op;

/// Shapes of square matrices: an empty batch, a 1x1 matrix, empty matrices, a batch, and a larger matrix.
const SQUARES: &[&[usize]] = &[&[0, 3, 3], &[1, 1], &[2, 0, 0], &[2, 3, 4, 4], &[19, 19]];

/// Shapes of matrices for ops that take matrices of any shape: square, wide, tall and empty matrices, and
/// batches.
const OBLONG: &[&[usize]] =
    &[&[0, 3, 2], &[1, 1], &[2, 0, 3], &[3, 0], &[2, 3, 5, 3], &[3, 5], &[19, 12], &[6, 37]];

pub(super) fn inputs(name: &str, types: &[DType], random: &mut Random) -> Fallible<Option<Vec<Vec<Tensor>>>> {
    let t = types.first().copied().unwrap_or(DType::Float);
    let mut all = Vec::new();
    match name.trim_start_matches("Batch") {
        "Cholesky" => {
            for dims in SQUARES {
                all.push(vec![positive(t, dims, random)?]);
                // Most random matrices have no Cholesky decomposition.
                all.push(vec![random.tensor(t, dims)?]);
            }
        }
        "MatrixInverse" | "MatrixDeterminant" | "LogMatrixDeterminant" | "Lu" => {
            for dims in SQUARES {
                all.push(vec![random.tensor(t, dims)?]);
            }
            if name.ends_with("Determinant") {
                all.push(vec![Tensor::zeros(t, Shape::new(&[2, 3, 3])?)?]);
            }
        }
        "MatrixSolve" => {
            for dims in SQUARES {
                for columns in [0, 1, 3] {
                    all.push(vec![random.tensor(t, dims)?, random.tensor(t, &right(dims, columns))?]);
                }
            }
        }
        "MatrixTriangularSolve" => {
            for dims in SQUARES {
                for columns in [0, 1, 3] {
                    all.push(vec![positive(t, dims, random)?, random.tensor(t, &right(dims, columns))?]);
                }
            }
            if name == "MatrixTriangularSolve" {
                all.push(vec![positive(t, &[3, 1, 4, 4], random)?, random.tensor(t, &[2, 4, 2])?]);
            }
        }
        "Qr" => {
            for dims in OBLONG {
                all.push(vec![random.tensor(t, dims)?]);
            }
        }
        "SelfAdjointEigV2" => {
            for dims in SQUARES {
                all.push(vec![random.tensor(t, dims)?]);
            }
            all.push(vec![Tensor::zeros(t, Shape::new(&[2, 3, 3])?)?]);
        }
        "Svd" => {
            for dims in OBLONG {
                all.push(vec![random.tensor(t, dims)?]);
            }
            // Two more inputs have matrices with singular values of zero: a zero matrix, and products of 5x2 and
            // 2x4 matrices.
            all.push(vec![Tensor::zeros(t, Shape::new(&[3, 2])?)?]);
            let factors = [random.tensor(t, &[2, 5, 2])?, random.tensor(t, &[2, 2, 4])?];
            all.push(run_op("BatchMatMulV2", &factors, &[("T", t.into())])?);
        }
        _ => return Ok(None),
    }
    Ok(Some(all))
}

/// Returns the shape of right-hand sides with `columns` columns, for linear systems with matrices of shape
/// `dims`.
fn right(dims: &[usize], columns: usize) -> Vec<usize> {
    [&dims[..dims.len() - 1], &[columns]].concat()
}

/// Returns positive definite matrices.
fn positive(t: DType, dims: &[usize], random: &mut Random) -> Fallible<Tensor> {
    let factor = random.tensor(DType::Double, dims)?;
    let attrs = [("T", DType::Double.into()), ("adj_y", true.into())];
    let mut product = run_op("BatchMatMulV2", &[factor.clone(), factor], &attrs)?.remove(0);
    let size = dims[dims.len() - 1];
    for matrix in product.values_mut::<f64>()?.chunks_exact_mut((size * size).max(1)) {
        (0..size).for_each(|i| matrix[i * size + i] += 1.0);
    }
    random.cast(&product, t)
}
