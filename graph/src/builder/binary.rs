//! Builders of arithmetic with two operands.

use super::Scope;
use crate::graph::Output;

/// Defines builders of element-wise ops with broadcasting: sizes must be equal or 1, aligned at the last axis.
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
    /// Returns `x + y`.
    add = "AddV2";
    /// Returns `x - y`.
    sub = "Sub";
    /// Returns `x * y`.
    mul = "Mul";
    /// Returns `x / y` in floating point.
    div = "RealDiv";
    /// Returns `x / y` rounded down.
    floor_div = "FloorDiv";
    /// Returns the remainder of [`Scope::floor_div`], which has the sign of `y`.
    floor_mod = "FloorMod";
    /// Returns `x / y` rounded towards zero.
    truncate_div = "TruncateDiv";
    /// Returns the remainder of [`Scope::truncate_div`], which has the sign of `x`.
    truncate_mod = "TruncateMod";
    /// Returns the larger of both operands.
    maximum = "Maximum";
    /// Returns the smaller of both operands.
    minimum = "Minimum";
    /// Returns `x` to the power `y`.
    pow = "Pow";
    /// Returns `(x - y)^2`.
    squared_difference = "SquaredDifference";
    /// Returns `x / y`, or 0 where `y` is 0.
    div_no_nan = "DivNoNan";
    /// Returns `x * y`, or 0 where `y` is 0, even if `x` is infinite or NaN.
    mul_no_nan = "MulNoNan";
    /// Returns `x / y`, or 0 where `x` is 0.
    xdivy = "Xdivy";
    /// Returns `x * log(y)`, or 0 where `x` is 0.
    xlogy = "Xlogy";
    /// Returns `x * log(1 + y)`, or 0 where `x` is 0.
    xlog1py = "Xlog1py";
    /// Returns the bits that are set in both operands.
    bitwise_and = "BitwiseAnd";
    /// Returns the bits that are set in at least one operand.
    bitwise_or = "BitwiseOr";
    /// Returns the bits that are set in exactly one operand.
    bitwise_xor = "BitwiseXor";
    /// Returns `x << y`.
    left_shift = "LeftShift";
    /// Returns `x >> y`.
    right_shift = "RightShift";
}

impl Scope {
    /// Returns the angle of the point `(x, y)` to the positive x-axis, in radians.
    pub fn atan2(&self, y: Output, x: Output) -> Output {
        self.op("Atan2").input(y).input(x).output()
    }

    /// Returns the sum of tensors of the same shape.
    pub fn add_n(&self, inputs: &[Output]) -> Output {
        self.op("AddN").input(inputs).output()
    }
}
