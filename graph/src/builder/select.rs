//! Builders of choices by condition.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// `x` where the condition holds, else `y`; all three are broadcast against each other.
    pub fn select(&self, condition: Output, x: Output, y: Output) -> Output {
        self.op("SelectV2").input(condition).input(x).input(y).output()
    }

    /// `x` with elements under `low` or over `high` replaced by these.
    pub fn clip(&self, x: Output, low: Output, high: Output) -> Output {
        self.op("ClipByValue").input(x).input(low).input(high).output()
    }
}
