//! Builders of what several GPUs compute together.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// The sum of what `count` GPUs give under one name in a step, of which this scope's is one: all of them must run.
    pub fn nccl_all_sum(&self, x: Output, count: usize, shared_name: &str) -> Output {
        self.op("NcclAllReduce")
            .input(x)
            .attr("reduction", "sum")
            .attr("num_devices", count as i64)
            .attr("shared_name", shared_name)
            .output()
    }
}
