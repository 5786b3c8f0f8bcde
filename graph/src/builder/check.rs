//! Builders of assertions and messages.

use super::Scope;
use crate::graph::{NodeId, Output};

impl Scope {
    /// Adds a node that fails the step if the scalar `cond` is false. The error message shows up to `summarize`
    /// elements of each tensor of `data`, or all if `summarize` is negative.
    pub fn assert(&self, cond: Output, data: &[Output], summarize: i64) -> NodeId {
        self.op("Assert").input(cond).input(data).attr("summarize", summarize).node()
    }

    /// Returns `x`. When the node runs, it writes `message` and the values of `data` to the standard error of its task.
    pub fn print(&self, x: Output, data: &[Output], message: &str) -> Output {
        self.op("Print").input(x).input(data).attr("message", message).output()
    }

    /// Returns a string: the template with each `%s` replaced by a tensor.
    pub fn string_format(&self, template: &str, values: &[Output]) -> Output {
        self.op("StringFormat").input(values).attr("template", template).output()
    }
}
