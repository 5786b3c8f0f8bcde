//! Builders of bias additions.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Adds the vector `bias` to `value` along the last axis.
    pub fn bias_add(&self, value: Output, bias: Output) -> Output {
        self.op("BiasAdd").input(value).input(bias).output()
    }
}
