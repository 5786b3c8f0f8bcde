//! Pseudo-random numbers from a generator whose state is a variable; each op advances the state.

use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "StatefulStandardNormal",
        inputs: &["resource: resource", "shape: shape_dtype"],
        infer: |infer| numbers(infer, 1),
        ..OF_STATE
    },
    OpDef { name: "StatefulStandardNormalV2", ..OF_STATE },
    OpDef { name: "StatefulTruncatedNormal", ..OF_STATE },
    OpDef { name: "StatefulUniform", ..OF_STATE },
    OpDef {
        name: "StatefulRandomBinomial",
        inputs: &["resource: resource", "algorithm: int64", "shape: S", "counts: T", "probs: T"],
        attrs: &[
            "S: {int32, int64}",
            "T: {half, float, double, int32, int64} = double",
            "dtype: {half, float, double, int32, int64} = int64",
        ],
        ..OF_STATE
    },
    OpDef {
        name: "StatefulUniformInt",
        inputs: &[
            "resource: resource",
            "algorithm: int64",
            "shape: shape_dtype",
            "minval: dtype",
            "maxval: dtype",
        ],
        attrs: &["dtype: type = int64", "shape_dtype: type = int64"],
        infer: |infer| {
            infer.input_of_rank(3, 0)?;
            infer.input_of_rank(4, 0)?;
            after_algorithm(infer)
        },
        ..OF_STATE
    },
    OpDef {
        name: "StatefulUniformFullInt",
        attrs: &["dtype: type = uint64", "shape_dtype: type = int64"],
        ..OF_STATE
    },
    OpDef {
        name: "RngSkip",
        inputs: &["resource: resource", "algorithm: int64", "delta: int64"],
        outputs: &[],
        attrs: &[],
        infer: scalars,
        ..OF_STATE
    },
    OpDef {
        name: "RngReadAndSkip",
        inputs: &["resource: resource", "alg: int32", "delta: uint64"],
        outputs: &["value: int64"],
        attrs: &[],
        infer: |infer| {
            scalars(infer)?;
            infer.set(0, PartialShape::vector(Some(3)));
            Ok(())
        },
        ..OF_STATE
    },
];

const OF_STATE: OpDef = OpDef {
    inputs: &["resource: resource", "algorithm: int64", "shape: shape_dtype"],
    outputs: &["output: dtype"],
    attrs: &["dtype: type = float", "shape_dtype: type = int64"],
    infer: after_algorithm,
    gradient: Gradient::Leaf,
    traits: Traits::STATEFUL,
    ..OpDef::NEW
};

/// Checks that the first three inputs (the handle, the algorithm and one parameter) are scalars.
fn scalars(infer: &mut Infer<'_>) -> Result<()> {
    (0..3).try_for_each(|i| infer.input_of_rank(i, 0).map(|_| ()))
}

fn after_algorithm(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(1, 0)?;
    numbers(infer, 2)
}

/// Sets the output's shape to the shape that input `at` describes.
fn numbers(infer: &mut Infer<'_>, at: usize) -> Result<()> {
    infer.input_of_rank(0, 0)?;
    let shape = infer.value_as_shape(at)?;
    infer.set(0, shape);
    Ok(())
}
