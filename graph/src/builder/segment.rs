//! Builders of reductions over segments.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Returns the sum of the rows of each id in `0..count`; rows with negative ids are ignored.
    pub fn unsorted_segment_sum(&self, data: Output, ids: Output, count: Output) -> Output {
        self.op("UnsortedSegmentSum").input(data).input(ids).input(count).output()
    }

    /// Returns the sum of the rows of each id; the ids must be sorted.
    pub fn segment_sum(&self, data: Output, ids: Output) -> Output {
        self.op("SegmentSum").input(data).input(ids).output()
    }
}
