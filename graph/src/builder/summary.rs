//! Builders of summaries.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// A number under a tag.
    pub fn scalar_summary(&self, tag: &str, value: Output) -> Output {
        self.op("ScalarSummary").input(self.constant(tag)).input(value).output()
    }

    /// How values are distributed, under a tag.
    pub fn histogram_summary(&self, tag: &str, values: Output) -> Output {
        self.op("HistogramSummary").input(self.constant(tag)).input(values).output()
    }

    /// Summaries as one.
    pub fn merge_summaries(&self, summaries: &[Output]) -> Output {
        self.op("MergeSummary").input(summaries).output()
    }
}
