//! Pseudo-random numbers: Philox streams, the same as TensorFlow for the same seeds.

use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

const SEED: &str = "seed: int = 0";
const SEED2: &str = "seed2: int = 0";

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "RandomUniform", ..OF_SHAPE },
    OpDef {
        name: "RandomUniformInt",
        inputs: &["shape: T", "minval: Tout", "maxval: Tout"],
        outputs: &["output: Tout"],
        attrs: &[SEED, SEED2, "Tout: {int32, int64}", "T: {int32, int64}"],
        infer: |infer| {
            infer.input_of_rank(1, 0)?;
            infer.input_of_rank(2, 0)?;
            shape_given(infer)
        },
        ..OF_SHAPE
    },
    OpDef { name: "RandomStandardNormal", ..OF_SHAPE },
    OpDef { name: "TruncatedNormal", ..OF_SHAPE },
    OpDef {
        name: "RandomShuffle",
        inputs: &["value: T"],
        outputs: &["output: T"],
        attrs: &[SEED, SEED2, "T: type"],
        infer: |infer| {
            infer.set(0, infer.input(0));
            Ok(())
        },
        ..OF_SHAPE
    },
    OpDef {
        name: "Multinomial",
        inputs: &["logits: T", "num_samples: int32"],
        outputs: &["output: output_dtype"],
        attrs: &[SEED, SEED2, "T: realnumbertype", "output_dtype: {int32, int64} = int64"],
        infer: |infer| {
            let logits = infer.input_of_rank(0, 2)?;
            infer.input_of_rank(1, 0)?;
            let samples: Dim = match infer.value(1) {
                Some(value) => value.to_i64s()?.first().and_then(|&n| usize::try_from(n).ok()),
                None => None,
            };
            infer.set(0, PartialShape::from([logits.dim(0), samples]));
            Ok(())
        },
        ..OF_SHAPE
    },
];

const OF_SHAPE: OpDef = OpDef {
    inputs: &["shape: T"],
    outputs: &["output: dtype"],
    attrs: &[SEED, SEED2, "dtype: {half, bfloat16, float, double}", "T: {int32, int64}"],
    infer: shape_given,
    gradient: Gradient::Leaf,
    traits: Traits::STATEFUL,
    ..OpDef::NEW
};

/// The first input is the output's shape.
fn shape_given(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.value_as_shape(0)?;
    infer.set(0, shape);
    Ok(())
}
