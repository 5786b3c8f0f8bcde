//! Builders of selection by a condition.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Returns `x` where the condition is true, otherwise `y`; all three are broadcast.
    pub fn select(&self, condition: Output, x: Output, y: Output) -> Output {
        self.op("SelectV2").input(condition).input(x).input(y).output()
    }

    /// Returns `x` limited to the range from `low` to `high`.
    pub fn clip(&self, x: Output, low: Output, high: Output) -> Output {
        self.op("ClipByValue").input(x).input(low).input(high).output()
    }
}
