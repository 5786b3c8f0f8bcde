//! Builders of random numbers that two seeds, a vector of integers, decide: the same in each step.

use super::Scope;
use crate::dtype::DType;
use crate::graph::Output;

impl Scope {
    /// Numbers in [0, 1) of a floating-point type, in the shape that a vector of integers gives.
    pub fn stateless_uniform(&self, shape: Output, seeds: Output, dtype: DType) -> Output {
        self.op("StatelessRandomUniform").input(shape).input(seeds).attr("dtype", dtype).output()
    }

    /// Numbers from the standard normal distribution.
    pub fn stateless_normal(&self, shape: Output, seeds: Output, dtype: DType) -> Output {
        self.op("StatelessRandomNormal").input(shape).input(seeds).attr("dtype", dtype).output()
    }

    /// Numbers from the standard normal distribution within two deviations.
    pub fn stateless_truncated_normal(&self, shape: Output, seeds: Output, dtype: DType) -> Output {
        self.op("StatelessTruncatedNormal").input(shape).input(seeds).attr("dtype", dtype).output()
    }
}
