//! Builders of random numbers. With seed 0 the numbers differ from run to run. With any other seed each session gets
//! the numbers that TensorFlow returns for this op seed in a graph without a graph seed. Other pairs of seeds are set
//! as the attributes `seed` and `seed2` through [`Scope::op`].

use super::{Call, Scope};
use crate::dtype::DType;
use crate::graph::Output;

/// The graph seed that TensorFlow uses when only an op seed is set.
const GRAPH_SEED: i64 = 87_654_321;

impl Scope {
    /// Returns numbers in [0, 1) of a floating-point type, with the shape in an integer vector.
    pub fn random_uniform(&self, shape: Output, dtype: DType, seed: i64) -> Output {
        self.random("RandomUniform", shape, dtype, seed)
    }

    /// Returns numbers from the standard normal distribution.
    pub fn random_normal(&self, shape: Output, dtype: DType, seed: i64) -> Output {
        self.random("RandomStandardNormal", shape, dtype, seed)
    }

    /// Returns numbers from the standard normal distribution, truncated at two standard deviations.
    pub fn truncated_normal(&self, shape: Output, dtype: DType, seed: i64) -> Output {
        self.random("TruncatedNormal", shape, dtype, seed)
    }

    /// Returns integers from `low` to `high`, excluding `high`; both are scalars of the result's type.
    pub fn random_uniform_int(&self, shape: Output, low: Output, high: Output, seed: i64) -> Output {
        seeded(self.op("RandomUniformInt").input(shape).input(low).input(high), seed)
    }

    /// Returns the rows of a tensor in random order.
    pub fn random_shuffle(&self, value: Output, seed: i64) -> Output {
        seeded(self.op("RandomShuffle").input(value), seed)
    }

    /// Returns `count` (a scalar) random classes for each row of logits.
    pub fn multinomial(&self, logits: Output, count: Output, seed: i64) -> Output {
        seeded(self.op("Multinomial").input(logits).input(count), seed)
    }

    /// Returns samples of shape `shape` from the gamma distribution with scale 1, for each parameter in `alpha`.
    pub fn random_gamma(&self, shape: Output, alpha: Output, seed: i64) -> Output {
        seeded(self.op("RandomGamma").input(shape).input(alpha), seed)
    }

    /// Returns samples of shape `shape` and type `dtype` from the Poisson distribution, for each rate.
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
    // TensorFlow takes op seeds modulo 2^31 - 1, which also makes negative seeds valid.
    call.attr("seed", GRAPH_SEED).attr("seed2", seed.rem_euclid(i32::MAX.into())).output()
}
