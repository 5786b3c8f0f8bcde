//! Builders of comparisons and logic.

use super::Scope;
use crate::graph::Output;

/// Element by element, broadcasting; the result is of type `bool`.
macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident = $op:literal;)*) => {
        impl Scope {
            $($(#[$doc])* pub fn $name(&self, x: Output, y: Output) -> Output {
                self.op($op).input(x).input(y).output()
            })*
        }
    };
}

comparisons! {
    /// `x == y`
    equal = "Equal";
    /// `x != y`
    not_equal = "NotEqual";
    /// `x < y`
    less = "Less";
    /// `x <= y`
    less_equal = "LessEqual";
    /// `x > y`
    greater = "Greater";
    /// `x >= y`
    greater_equal = "GreaterEqual";
    /// Both hold
    logical_and = "LogicalAnd";
    /// Either holds
    logical_or = "LogicalOr";
}

impl Scope {
    /// Whether `x` and `y`, of one shape, differ by less than `tolerance`.
    pub fn approximate_equal(&self, x: Output, y: Output, tolerance: f32) -> Output {
        self.op("ApproximateEqual").input(x).input(y).attr("tolerance", tolerance).output()
    }

    /// `x` does not hold.
    pub fn logical_not(&self, x: Output) -> Output {
        self.op("LogicalNot").input(x).output()
    }
}
