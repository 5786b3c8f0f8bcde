//! Builders of random numbers. Seed 0 stands for numbers that differ from run to run; with any other, each
//! session sees the numbers that TensorFlow gives for that op seed in a graph without a seed of its own. Other
//! pairs of seeds are the attributes `seed` and `seed2` of [`Scope::op`].

use super::{Call, Scope};
use crate::dtype::DType;
use crate::graph::Output;

/// The graph seed that TensorFlow assumes beside an op seed alone.
const GRAPH_SEED: i64 = 87_654_321;

impl Scope {
    /// Numbers in [0, 1) of a floating-point type, in the shape that a vector of integers gives.
    pub fn random_uniform(&self, shape: Output, dtype: DType, seed: i64) -> Output {
        self.random("RandomUniform", shape, dtype, seed)
    }

    /// Numbers from the standard normal distribution.
    pub fn random_normal(&self, shape: Output, dtype: DType, seed: i64) -> Output {
        self.random("RandomStandardNormal", shape, dtype, seed)
    }

    /// Numbers from the standard normal distribution within two deviations.
    pub fn truncated_normal(&self, shape: Output, dtype: DType, seed: i64) -> Output {
        self.random("TruncatedNormal", shape, dtype, seed)
    }

    /// Integers from `low` up to but without `high`, scalars whose type the integers have.
    pub fn random_uniform_int(&self, shape: Output, low: Output, high: Output, seed: i64) -> Output {
        seeded(self.op("RandomUniformInt").input(shape).input(low).input(high), seed)
    }

    /// The rows of a tensor in random order.
    pub fn random_shuffle(&self, value: Output, seed: i64) -> Output {
        seeded(self.op("RandomShuffle").input(value), seed)
    }

    /// For each row of logits, `count` (a scalar) indices of classes.
    pub fn multinomial(&self, logits: Output, count: Output, seed: i64) -> Output {
        seeded(self.op("Multinomial").input(logits).input(count), seed)
    }

    /// For each shape of `alpha`, as many numbers of the gamma distribution with scale 1.
    pub fn random_gamma(&self, shape: Output, alpha: Output, seed: i64) -> Output {
        seeded(self.op("RandomGamma").input(shape).input(alpha), seed)
    }

    /// For each rate, as many numbers of events of the Poisson distribution, of type `dtype`.
    pub fn random_poisson(&self, shape: Output, rate: Output, dtype: DType, seed: i64) -> Output {
        seeded(self.op("RandomPoissonV2").input(shape).input(rate).attr("dtype", dtype), seed)
    }

    fn random(&self, op: &str, shape: Output, dtype: DType, seed: i64) -> Output {
        seeded(self.op(op).input(shape).attr("dtype", dtype), seed)
    }
}

fn seeded(call: Call<'_>, seed: i64) -> Output {
    if seed == 0 {
        return call.output();
    }
    // As TensorFlow truncates op seeds, which also takes negative ones.
    call.attr("seed", GRAPH_SEED).attr("seed2", seed.rem_euclid(i32::MAX.into())).output()
}
