//! Builders of summaries.

use super::Scope;
use crate::graph::Output;

/// The message `SummaryMetadata { plugin_data { plugin_name: "text" } }`.
const OF_TEXT: &str = "\n\u{6}\n\u{4}text";

impl Scope {
    /// A number under a tag.
    pub fn scalar_summary(&self, tag: &str, value: Output) -> Output {
        self.op("ScalarSummary").input(self.constant(tag)).input(value).output()
    }

    /// How values are distributed, under a tag.
    pub fn histogram_summary(&self, tag: &str, values: Output) -> Output {
        self.op("HistogramSummary").input(self.constant(tag)).input(values).output()
    }

    /// Up to so many of the pictures `[n, height, width, channels]` under a tag: grey, coloured, or with transparency.
    pub fn image_summary(&self, tag: &str, images: Output, max_images: i64) -> Output {
        let call = self.op("ImageSummary").input(self.constant(tag)).input(images);
        call.attr("max_images", max_images).output()
    }

    /// Strings in any shape under a tag, which are shown as Markdown; those of a matrix as a table.
    pub fn text_summary(&self, tag: &str, text: Output) -> Output {
        let call = self.op("TensorSummaryV2").input(self.constant(tag)).input(text);
        call.input(self.constant(OF_TEXT)).output()
    }

    /// Summaries as one.
    pub fn merge_summaries(&self, summaries: &[Output]) -> Output {
        self.op("MergeSummary").input(summaries).output()
    }
}
