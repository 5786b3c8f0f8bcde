//! Builders of partitioning and stitching.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Splits the rows of `data` into `num` tensors: row `i` goes to tensor `partitions[i]`.
    pub fn dynamic_partition(&self, data: Output, partitions: Output, num: usize) -> Vec<Output> {
        let call = self.op("DynamicPartition").input(data).input(partitions);
        call.attr("num_partitions", num as i64).outputs()
    }

    /// Returns a tensor whose row `indices[i][j]` is `data[i][j]`; if an index occurs several times, the last row is
    /// used.
    pub fn dynamic_stitch(&self, indices: &[Output], data: &[Output]) -> Output {
        self.op("DynamicStitch").input(indices).input(data).output()
    }

    /// Returns the indices of the elements that are true or not zero, one per row.
    pub fn where_true(&self, condition: Output) -> Output {
        self.op("Where").input(condition).output()
    }
}
