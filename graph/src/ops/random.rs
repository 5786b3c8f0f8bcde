//! Pseudo-random numbers from Philox streams, equal to TensorFlow's for the same seeds.

use super::broadcast::reduce_gradients;
use super::{Gradient, OpDef, Traits};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
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
        infer: multinomial,
        ..OF_SHAPE
    },
    OpDef {
        name: "SobolSample",
        inputs: &["dim: int32", "num_results: int32", "skip: int32"],
        outputs: &["samples: dtype"],
        attrs: &["dtype: {float, double} = float"],
        infer: sobol,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "NonDeterministicInts",
        inputs: &["shape: shape_dtype"],
        attrs: &["dtype: type = int64", "shape_dtype: type = int64"],
        ..OF_SHAPE
    },
    OpDef {
        name: "RandomGamma",
        inputs: &["shape: S", "alpha: T"],
        outputs: &["output: T"],
        attrs: &[SEED, SEED2, "S: {int32, int64}", "T: {half, float, double}"],
        gradient: Gradient::Defined(|scope, forward, dz| gamma_gradient(scope, forward, dz, 1)),
        ..PER_PARAMETER
    },
    OpDef {
        name: "RandomPoisson",
        inputs: &["shape: S", "rate: dtype"],
        outputs: &["output: dtype"],
        attrs: &[SEED, SEED2, "S: {int32, int64}", "dtype: {half, float, double}"],
        ..PER_PARAMETER
    },
    OpDef {
        name: "RandomPoissonV2",
        inputs: &["shape: S", "rate: R"],
        outputs: &["output: dtype"],
        attrs: &[
            SEED,
            SEED2,
            "S: {int32, int64}",
            "R: {half, float, double, int32, int64} = double",
            "dtype: {half, float, double, int32, int64} = int64",
        ],
        ..PER_PARAMETER
    },
    OpDef {
        name: "ParameterizedTruncatedNormal",
        inputs: &["shape: T", "means: dtype", "stdevs: dtype", "minvals: dtype", "maxvals: dtype"],
        infer: |infer| {
            for i in 1..5 {
                if infer.input(i).rank().is_some_and(|rank| rank > 1) {
                    crate::invalid!("Shape must be at most rank 1 but is {}", infer.input(i));
                }
            }
            shape_given(infer)
        },
        ..OF_SHAPE
    },
];

/// The op table row of an op that draws a number of samples for each distribution parameter.
const PER_PARAMETER: OpDef = OpDef {
    infer: |infer| {
        let (shape, each) = (infer.value_as_shape(0)?, infer.input(1));
        let both = shape.dims().zip(each.dims()).map(|(shape, each)| shape.iter().chain(each).copied());
        let both = both.map_or(PartialShape::unknown(), PartialShape::of_dims);
        infer.set(0, both);
        Ok(())
    },
    ..OF_SHAPE
};

/// Gradient of gamma samples with respect to their shape parameters, input `alpha`: the derivative of a sample at
/// constant cumulative probability.
pub(super) fn gamma_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
    alpha: usize,
) -> Result<Vec<Option<Output>>> {
    let mut gradients = vec![None; forward.inputs.len()];
    if let Some(dz) = dz[0] {
        let (shapes, numbers) = (forward.input(alpha), forward.output(0));
        let slope = scope.op("RandomGammaGrad").input(shapes).input(numbers).output();
        gradients[alpha] = reduce_gradients(scope, [shapes, numbers], [Some(scope.mul(dz, slope)), None])?[0];
    }
    Ok(gradients)
}

const OF_SHAPE: OpDef = OpDef {
    inputs: &["shape: T"],
    outputs: &["output: dtype"],
    attrs: &[SEED, SEED2, "dtype: {half, bfloat16, float, double}", "T: {int32, int64}"],
    infer: shape_given,
    gradient: Gradient::Leaf,
    traits: Traits::STATEFUL,
    ..OpDef::NEW
};

/// Sets the output's shape to the value of the first input.
pub(super) fn shape_given(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.value_as_shape(0)?;
    infer.set(0, shape);
    Ok(())
}

/// Sets the shape of SobolSample: a row for each point, as long as input 0 says.
fn sobol(infer: &mut Infer<'_>) -> Result<()> {
    let mut dims = [None; 3];
    for (i, dim) in dims.iter_mut().enumerate() {
        infer.input_of_rank(i, 0)?;
        if let Some(value) = infer.value(i) {
            *dim = usize::try_from(value.item::<i32>()?).ok();
        }
    }
    infer.set(0, PartialShape::from([dims[1], dims[0]]));
    Ok(())
}

/// Sets the shape of Multinomial: for each row of input 0, the number of samples that input 1 holds.
pub(super) fn multinomial(infer: &mut Infer<'_>) -> Result<()> {
    let logits = infer.input_of_rank(0, 2)?;
    infer.input_of_rank(1, 0)?;
    let samples: Dim = match infer.value(1) {
        Some(value) => value.to_i64s()?.first().and_then(|&n| usize::try_from(n).ok()),
        None => None,
    };
    infer.set(0, PartialShape::from([logits.dim(0), samples]));
    Ok(())
}
