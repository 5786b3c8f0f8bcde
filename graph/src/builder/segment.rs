//! Builders of reductions over segments.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// The sum of the rows of each id in `0..count`; negative ids are left out.
    pub fn unsorted_segment_sum(&self, data: Output, ids: Output, count: Output) -> Output {
        self.op("UnsortedSegmentSum").input(data).input(ids).input(count).output()
    }

    /// The sum of the rows of each id; ids ascend.
    pub fn segment_sum(&self, data: Output, ids: Output) -> Output {
        self.op("SegmentSum").input(data).input(ids).output()
    }
}
