//! Builders of summaries.

use super::Scope;
use crate::graph::Output;

/// The serialized message `SummaryMetadata { plugin_data { plugin_name: "text" } }`.
const OF_TEXT: &str = "\n\u{6}\n\u{4}text";

impl Scope {
    /// Returns a summary of the scalar `value` under a tag.
    pub fn scalar_summary(&self, tag: &str, value: Output) -> Output {
        self.op("ScalarSummary").input(self.constant(tag)).input(value).output()
    }

    /// Returns a summary with the histogram of the values under a tag.
    pub fn histogram_summary(&self, tag: &str, values: Output) -> Output {
        self.op("HistogramSummary").input(self.constant(tag)).input(values).output()
    }

    /// Returns a summary of up to `max_images` images `[n, height, width, channels]` under a tag; 1, 3 or 4 channels
    /// mean grey, colour, and colour with transparency.
    pub fn image_summary(&self, tag: &str, images: Output, max_images: i64) -> Output {
        let call = self.op("ImageSummary").input(self.constant(tag)).input(images);
        call.attr("max_images", max_images).output()
    }

    /// Returns a summary of strings under a tag; TensorBoard shows them as Markdown, and a matrix as a table.
    pub fn text_summary(&self, tag: &str, text: Output) -> Output {
        let call = self.op("TensorSummaryV2").input(self.constant(tag)).input(text);
        call.input(self.constant(OF_TEXT)).output()
    }

    /// Merges summaries into one.
    pub fn merge_summaries(&self, summaries: &[Output]) -> Output {
        self.op("MergeSummary").input(summaries).output()
    }
}
