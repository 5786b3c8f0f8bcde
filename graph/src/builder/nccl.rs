//! Builders of collective ops over several GPUs.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Returns the sum of the values that `count` GPUs contribute under `shared_name` in a step. The scope's device
    /// must be one of these GPUs, and all nodes with this `shared_name` must run.
    pub fn nccl_all_sum(&self, x: Output, count: usize, shared_name: &str) -> Output {
        self.op("NcclAllReduce")
            .input(x)
            .attr("reduction", "sum")
            .attr("num_devices", count as i64)
            .attr("shared_name", shared_name)
            .output()
    }
}
