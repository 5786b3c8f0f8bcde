//! Diagonals of batched matrices: extraction, replacement, and construction of diagonal matrices.

use super::broadcast::arrived;
use super::shape::first_only;
use super::unary::same_shape;
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "MatrixDiag",
        inputs: &["diagonal: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: |infer| diagonal_shape(infer, true),
        gradient: Gradient::Defined(|scope, forward, dz| {
            opposite_op_gradient(scope, forward, dz, "MatrixDiagPart")
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixDiagV2",
        inputs: &["diagonal: T", "k: int32", "num_rows: int32", "num_cols: int32", "padding_value: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixDiagV3",
        inputs: &["diagonal: T", "k: int32", "num_rows: int32", "num_cols: int32", "padding_value: T"],
        outputs: &["output: T"],
        attrs: &["T: type", "align: {'LEFT_RIGHT', 'RIGHT_LEFT', 'LEFT_LEFT', 'RIGHT_RIGHT'} = 'RIGHT_LEFT'"],
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchMatrixDiag",
        inputs: &["diagonal: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: |infer| diagonal_shape(infer, true),
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixDiagPart",
        inputs: &["input: T"],
        outputs: &["diagonal: T"],
        attrs: &["T: type"],
        infer: |infer| diagonal_shape(infer, false),
        gradient: Gradient::Defined(part_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixDiagPartV2",
        inputs: &["input: T", "k: int32", "padding_value: T"],
        outputs: &["diagonal: T"],
        attrs: &["T: type"],
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixDiagPartV3",
        inputs: &["input: T", "k: int32", "padding_value: T"],
        outputs: &["diagonal: T"],
        attrs: &["T: type", "align: {'LEFT_RIGHT', 'RIGHT_LEFT', 'LEFT_LEFT', 'RIGHT_RIGHT'} = 'RIGHT_LEFT'"],
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchMatrixDiagPart",
        inputs: &["input: T"],
        outputs: &["diagonal: T"],
        attrs: &["T: type"],
        infer: |infer| diagonal_shape(infer, false),
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixSetDiag",
        inputs: &["input: T", "diagonal: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: same_shape,
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixSetDiagV2",
        inputs: &["input: T", "diagonal: T", "k: int32"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: same_shape,
        ..OpDef::NEW
    },
    OpDef {
        name: "MatrixSetDiagV3",
        inputs: &["input: T", "diagonal: T", "k: int32"],
        outputs: &["output: T"],
        attrs: &["T: type", "align: {'LEFT_RIGHT', 'RIGHT_LEFT', 'LEFT_LEFT', 'RIGHT_RIGHT'} = 'RIGHT_LEFT'"],
        infer: same_shape,
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchMatrixSetDiag",
        inputs: &["input: T", "diagonal: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: same_shape,
        ..OpDef::NEW
    },
];

/// Infers the shape of a diagonal matrix built from its main diagonal (if `make` is true), or of the main diagonal of a
/// matrix.
fn diagonal_shape(infer: &mut Infer<'_>, make: bool) -> Result<()> {
    let shape = infer.input(0);
    let Some(dims) = shape.dims() else { return Ok(()) };
    let out: Vec<Dim> = match (make, dims) {
        (true, [.., n]) => dims.iter().copied().chain([*n]).collect(),
        (false, [batch @ .., rows, columns]) => {
            batch.iter().copied().chain([rows.zip(*columns).map(|(r, c)| r.min(c))]).collect()
        }
        _ => crate::invalid!(
            "Shape must be at least rank {} but is rank {}",
            2 - usize::from(make),
            dims.len()
        ),
    };
    infer.set(0, PartialShape::of_dims(out));
    Ok(())
}

fn opposite_op_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
    op: &str,
) -> Result<Vec<Option<Output>>> {
    let dz = arrived(forward, dz)?;
    Ok(first_only(forward, Some(scope.op(op).input(dz).output())))
}

/// Gradient of MatrixDiagPart: `dz` on the main diagonal and zeros elsewhere, also for matrices that are not square.
fn part_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let zeros = scope.zeros_like(forward.input(0));
    let call = scope.op("MatrixSetDiag").input(zeros).input(arrived(forward, dz)?);
    Ok(first_only(forward, Some(call.output())))
}
