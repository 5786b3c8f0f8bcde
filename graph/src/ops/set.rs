//! Set operations along the last axis of dense and sparse tensors.

use super::{Gradient, OpDef};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

const MEMBERS: &str = "T: {int8, int16, int32, int64, uint8, uint16, string}";
const VALIDATE: &str = "validate_indices: bool = true";

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "SetSize",
        inputs: &["set_indices: int64", "set_values: T", "set_shape: int64"],
        outputs: &["size: int32"],
        attrs: &[VALIDATE, MEMBERS],
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DenseToDenseSetOperation",
        inputs: &["set1: T", "set2: T"],
        infer: |infer| {
            let ranks = [set_rank(infer, 0)?, set_rank(infer, 1)?];
            result(infer, ranks[0].or(ranks[1]))
        },
        ..OPERATION
    },
    OpDef {
        name: "DenseToSparseSetOperation",
        inputs: &["set1: T", "set2_indices: int64", "set2_values: T", "set2_shape: int64"],
        infer: |infer| {
            let (dense, sparse) = (set_rank(infer, 0)?, sparse_rank(infer, 1)?);
            result(infer, dense.or(sparse))
        },
        ..OPERATION
    },
    OpDef {
        name: "SparseToSparseSetOperation",
        inputs: &[
            "set1_indices: int64",
            "set1_values: T",
            "set1_shape: int64",
            "set2_indices: int64",
            "set2_values: T",
            "set2_shape: int64",
        ],
        infer: |infer| {
            let ranks = [sparse_rank(infer, 0)?, sparse_rank(infer, 3)?];
            result(infer, ranks[0].or(ranks[1]))
        },
        ..OPERATION
    },
];

const OPERATION: OpDef = OpDef {
    outputs: &["result_indices: int64", "result_values: T", "result_shape: int64"],
    attrs: &["set_operation: string", VALIDATE, MEMBERS],
    gradient: Gradient::Leaf,
    ..OpDef::NEW
};

fn set_rank(infer: &Infer<'_>, at: usize) -> Result<Dim> {
    let rank = infer.input(at).rank();
    if let Some(rank) = rank.filter(|&rank| rank < 2) {
        crate::invalid!("Input {at} expected rank >= 2, got {rank}");
    }
    Ok(rank)
}

/// Returns the rank of the sparse tensor in inputs `at..at + 3`.
fn sparse_rank(infer: &Infer<'_>, at: usize) -> Result<Dim> {
    let indices = infer.input_of_rank(at, 2)?;
    infer.input_of_rank(at + 1, 1)?;
    let shape = infer.input_of_rank(at + 2, 1)?;
    Ok(shape.dim(0).or(indices.dim(1)))
}

/// Sets the shapes of outputs 0 to 2: the indices, values and shape of a sparse tensor of this rank.
fn result(infer: &mut Infer<'_>, rank: Dim) -> Result<()> {
    infer.set(0, [None, rank]);
    infer.set(1, PartialShape::vector(None));
    infer.set(2, PartialShape::vector(rank));
    Ok(())
}
