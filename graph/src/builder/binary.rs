//! Builders of arithmetic.

use super::Scope;
use crate::graph::Output;

/// Element by element, broadcasting: shapes `[..]` that agree from the last axis backwards or are 1.
macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident = $op:literal;)*) => {
        impl Scope {
            $($(#[$doc])* pub fn $name(&self, x: Output, y: Output) -> Output {
                self.op($op).input(x).input(y).output()
            })*
        }
    };
}

binary! {
    /// `x + y`
    add = "AddV2";
    /// `x - y`
    sub = "Sub";
    /// `x * y`
    mul = "Mul";
    /// `x / y`, in floating point
    div = "RealDiv";
    /// The larger of both
    maximum = "Maximum";
    /// The smaller of both
    minimum = "Minimum";
}
