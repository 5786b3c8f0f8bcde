//! Sparse matrices in compressed rows, held by variants.

use super::{InferFn, OpDef};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

const TYPED: &[&str] = &["type: {float, double, complex64, complex128}"];
const ELEMENTS: &[&str] = &["T: {float, double, complex64, complex128}"];

const fn of(
    name: &'static str,
    inputs: &'static [&'static str],
    outputs: &'static [&'static str],
    attrs: &'static [&'static str],
    infer: InferFn,
) -> OpDef {
    OpDef { name, inputs, outputs, attrs, infer, ..OpDef::NEW }
}

pub(super) const OPS: &[OpDef] = &[
    of(
        "SparseTensorToCSRSparseMatrix",
        &["indices: int64", "values: T", "dense_shape: int64"],
        &["sparse_matrix: variant"],
        ELEMENTS,
        scalar,
    ),
    of(
        "CSRSparseMatrixToSparseTensor",
        &["sparse_matrix: variant"],
        &["indices: int64", "values: type", "dense_shape: int64"],
        TYPED,
        |infer| {
            infer.set(0, [None, None]);
            infer.set(1, [None]);
            infer.set(2, [None]);
            Ok(())
        },
    ),
    of(
        "DenseToCSRSparseMatrix",
        &["dense_input: T", "indices: int64"],
        &["sparse_output: variant"],
        ELEMENTS,
        scalar,
    ),
    of(
        "CSRSparseMatrixToDense",
        &["sparse_input: variant"],
        &["dense_output: type"],
        TYPED,
        super::unknown_shapes,
    ),
    of(
        "CSRSparseMatrixComponents",
        &["csr_sparse_matrix: variant", "index: int32"],
        &["row_ptrs: int32", "col_inds: int32", "values: type"],
        TYPED,
        |infer| {
            infer.input_of_rank(1, 0)?;
            (0..3).for_each(|i| infer.set(i, [None]));
            Ok(())
        },
    ),
    of("SparseMatrixNNZ", &["sparse_matrix: variant"], &["nnz: int32"], &[], super::unknown_shapes),
    of(
        "SparseMatrixTranspose",
        &["input: variant"],
        &["output: variant"],
        &["conjugate: bool = false", "type: {float, double, complex64, complex128}"],
        scalar,
    ),
    of(
        "SparseMatrixMatMul",
        &["a: variant", "b: T"],
        &["output: T"],
        &[
            "T: type",
            "transpose_a: bool = false",
            "transpose_b: bool = false",
            "adjoint_a: bool = false",
            "adjoint_b: bool = false",
            "transpose_output: bool = false",
            "conjugate_output: bool = false",
        ],
        super::unknown_shapes,
    ),
    of(
        "SparseMatrixSparseMatMul",
        &["a: variant", "b: variant"],
        &["c: variant"],
        &[
            "type: {float, double, complex64, complex128}",
            "transpose_a: bool = false",
            "transpose_b: bool = false",
            "adjoint_a: bool = false",
            "adjoint_b: bool = false",
        ],
        scalar,
    ),
    of("SparseMatrixOrderingAMD", &["input: variant"], &["output: int32"], &[], super::unknown_shapes),
    of(
        "SparseMatrixSparseCholesky",
        &["input: variant", "permutation: int32"],
        &["output: variant"],
        TYPED,
        scalar,
    ),
];

fn scalar(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, PartialShape::scalar());
    Ok(())
}
