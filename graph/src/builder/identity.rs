//! Builders of ops that forward their inputs, and of nodes that only impose an order.

use super::Scope;
use crate::graph::{NodeId, Output};

impl Scope {
    /// Returns the value unchanged; for a reference, a snapshot of the variable's value.
    pub fn identity(&self, x: Output) -> Output {
        self.op("Identity").input(x).output()
    }

    /// Returns the values unchanged; each becomes available only when all of `values` are.
    pub fn identity_n(&self, values: &[Output]) -> Vec<Output> {
        self.op("IdentityN").input(values).outputs()
    }

    /// Returns the value unchanged; no gradient flows through the node.
    pub fn stop_gradient(&self, x: Output) -> Output {
        self.op("StopGradient").input(x).output()
    }

    /// Returns the value unchanged; building a gradient through the node fails with `message`.
    pub fn prevent_gradient(&self, x: Output, message: &str) -> Output {
        self.op("PreventGradient").input(x).attr("message", message).output()
    }

    /// Returns the value unchanged; the step fails with `message` if an element is infinite or NaN.
    pub fn check_numerics(&self, x: Output, message: &str) -> Output {
        self.op("CheckNumerics").input(x).attr("message", message).output()
    }

    /// Adds a node that does nothing.
    pub fn no_op(&self) -> NodeId {
        self.op("NoOp").node()
    }

    /// Adds a `NoOp` that runs after all of `nodes`.
    pub fn group(&self, nodes: &[NodeId]) -> NodeId {
        self.control(nodes).op("NoOp").name("group").node()
    }
}
