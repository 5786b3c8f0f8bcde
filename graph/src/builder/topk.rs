//! Builders of ops that find the largest elements.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Returns the `k` largest elements along the last axis in descending order, and their indices.
    pub fn top_k(&self, x: Output, k: i32) -> [Output; 2] {
        let k = self.constant(k);
        let node = self.op("TopKV2").input(x).input(k).node();
        [Output::new(node, 0), Output::new(node, 1)]
    }
}
