//! Feature crosses: all combinations of one feature from each column, row by row.

use super::{Gradient, OpDef};
use crate::shape::PartialShape;

const COUNT: &str = "N: int >= 0";
const SPARSE: &str = "sparse_types: list({int64, string}) >= 0";
const DENSE: &str = "dense_types: list({int64, string}) >= 0";

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "SparseCross",
        inputs: &[
            "indices: N * int64",
            "values: sparse_types",
            "shapes: N * int64",
            "dense_inputs: dense_types",
        ],
        outputs: &["output_indices: int64", "output_values: out_type", "output_shape: int64"],
        attrs: &[
            COUNT,
            "hashed_output: bool",
            "num_buckets: int >= 0",
            "hash_key: int",
            SPARSE,
            DENSE,
            "out_type: {int64, string}",
            "internal_type: {int64, string}",
        ],
        ..CROSS
    },
    OpDef {
        name: "SparseCrossV2",
        inputs: &[
            "indices: N * int64",
            "values: sparse_types",
            "shapes: N * int64",
            "dense_inputs: dense_types",
            "sep: string",
        ],
        outputs: &["output_indices: int64", "output_values: string", "output_shape: int64"],
        ..CROSS
    },
    OpDef {
        name: "SparseCrossHashed",
        inputs: &[
            "indices: N * int64",
            "values: sparse_types",
            "shapes: N * int64",
            "dense_inputs: dense_types",
            "num_buckets: int64",
            "strong_hash: bool",
            "salt: int64",
        ],
        outputs: &["output_indices: int64", "output_values: int64", "output_shape: int64"],
        ..CROSS
    },
];

const CROSS: OpDef = OpDef {
    attrs: &[COUNT, SPARSE, DENSE],
    infer: |infer| {
        infer.set(0, [None, Some(2)]);
        infer.set(1, PartialShape::vector(None));
        infer.set(2, PartialShape::vector(Some(2)));
        Ok(())
    },
    gradient: Gradient::Leaf,
    ..OpDef::NEW
};
