//! Builders of parting and stitching.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// The rows of `data` in `num` parts, each in the part that `partitions` says.
    pub fn dynamic_partition(&self, data: Output, partitions: Output, num: usize) -> Vec<Output> {
        let call = self.op("DynamicPartition").input(data).input(partitions);
        call.attr("num_partitions", num as i64).outputs()
    }

    /// One tensor whose row `indices[i][j]` is `data[i][j]`; of several for one row the last stays.
    pub fn dynamic_stitch(&self, indices: &[Output], data: &[Output]) -> Output {
        self.op("DynamicStitch").input(indices).input(data).output()
    }

    /// The indices of the elements that are true, or not zero, one a row.
    pub fn where_true(&self, condition: Output) -> Output {
        self.op("Where").input(condition).output()
    }
}
