//! Builders of ops that find distinct elements.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Returns the distinct elements of a vector in order of first appearance, and for each element of `x` its index in
    /// that list.
    pub fn unique(&self, x: Output) -> [Output; 2] {
        let node = self.op("Unique").input(x).node();
        [Output::new(node, 0), Output::new(node, 1)]
    }
}
