//! Builders of biases.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Adds a bias vector along the last axis.
    pub fn bias_add(&self, value: Output, bias: Output) -> Output {
        self.op("BiasAdd").input(value).input(bias).output()
    }
}
