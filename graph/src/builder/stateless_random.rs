//! Builders of stateless random numbers, which depend only on two seeds, an integer vector, and are the same in each
//! step.

use super::Scope;
use crate::dtype::DType;
use crate::graph::Output;

impl Scope {
    /// Returns numbers in [0, 1) of a floating-point type, with the shape in an integer vector.
    pub fn stateless_uniform(&self, shape: Output, seeds: Output, dtype: DType) -> Output {
        self.op("StatelessRandomUniform").input(shape).input(seeds).attr("dtype", dtype).output()
    }

    /// Returns numbers from the standard normal distribution.
    pub fn stateless_normal(&self, shape: Output, seeds: Output, dtype: DType) -> Output {
        self.op("StatelessRandomNormal").input(shape).input(seeds).attr("dtype", dtype).output()
    }

    /// Returns numbers from the standard normal distribution, truncated at two standard deviations.
    pub fn stateless_truncated_normal(&self, shape: Output, seeds: Output, dtype: DType) -> Output {
        self.op("StatelessTruncatedNormal").input(shape).input(seeds).attr("dtype", dtype).output()
    }
}
