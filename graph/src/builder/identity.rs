//! Builders of ops that pass their inputs through, and of nodes that only order.

use super::Scope;
use crate::graph::{NodeId, Output};

impl Scope {
    /// The same value; of a reference, a snapshot.
    pub fn identity(&self, x: Output) -> Output {
        self.op("Identity").input(x).output()
    }

    /// The same values, all there before any is.
    pub fn identity_n(&self, values: &[Output]) -> Vec<Output> {
        self.op("IdentityN").input(values).outputs()
    }

    /// The same value, through which no gradient flows.
    pub fn stop_gradient(&self, x: Output) -> Output {
        self.op("StopGradient").input(x).output()
    }

    /// The same value, of which a gradient is an error that says `message`.
    pub fn prevent_gradient(&self, x: Output, message: &str) -> Output {
        self.op("PreventGradient").input(x).attr("message", message).output()
    }

    /// The same value; the step fails, saying `message`, if an element is infinite or not a number.
    pub fn check_numerics(&self, x: Output, message: &str) -> Output {
        self.op("CheckNumerics").input(x).attr("message", message).output()
    }

    pub fn no_op(&self) -> NodeId {
        self.op("NoOp").node()
    }

    /// A node that is done when all of these are.
    pub fn group(&self, nodes: &[NodeId]) -> NodeId {
        self.control(nodes).op("NoOp").name("group").node()
    }
}
