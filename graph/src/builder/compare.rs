//! Builders of comparisons and logic.

use super::Scope;
use crate::graph::Output;

/// Defines builders of element-wise ops with broadcasting and a result of type `bool`.
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
    /// Returns `x == y`.
    equal = "Equal";
    /// Returns `x != y`.
    not_equal = "NotEqual";
    /// Returns `x < y`.
    less = "Less";
    /// Returns `x <= y`.
    less_equal = "LessEqual";
    /// Returns `x > y`.
    greater = "Greater";
    /// Returns `x >= y`.
    greater_equal = "GreaterEqual";
    /// Returns true where both operands are true.
    logical_and = "LogicalAnd";
    /// Returns true where at least one operand is true.
    logical_or = "LogicalOr";
}

impl Scope {
    /// Returns true where `x` and `y`, which must have the same shape, differ by less than `tolerance`.
    pub fn approximate_equal(&self, x: Output, y: Output, tolerance: f32) -> Output {
        self.op("ApproximateEqual").input(x).input(y).attr("tolerance", tolerance).output()
    }

    /// Returns true where `x` is false.
    pub fn logical_not(&self, x: Output) -> Output {
        self.op("LogicalNot").input(x).output()
    }
}
