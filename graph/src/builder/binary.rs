//! Builders of arithmetic of two operands.

use super::Scope;
use crate::graph::Output;

/// Element by element, broadcasting: shapes that agree from the last axis backwards or are 1.
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
    /// `x / y` rounded down
    floor_div = "FloorDiv";
    /// What `floor_div` leaves; the sign is that of `y`
    floor_mod = "FloorMod";
    /// `x / y` rounded towards zero
    truncate_div = "TruncateDiv";
    /// What `truncate_div` leaves; the sign is that of `x`
    truncate_mod = "TruncateMod";
    /// The larger of both
    maximum = "Maximum";
    /// The smaller of both
    minimum = "Minimum";
    /// `x` to the power `y`
    pow = "Pow";
    /// `(x - y)^2`
    squared_difference = "SquaredDifference";
    /// `x / y`, or 0 where `y` is 0
    div_no_nan = "DivNoNan";
    /// `x * y`, or 0 where `y` is 0, whatever `x` is
    mul_no_nan = "MulNoNan";
    /// `x / y`, or 0 where `x` is 0
    xdivy = "Xdivy";
    /// `x * log(y)`, or 0 where `x` is 0
    xlogy = "Xlogy";
    /// `x * log(1 + y)`, or 0 where `x` is 0
    xlog1py = "Xlog1py";
    /// The bits that are in both
    bitwise_and = "BitwiseAnd";
    /// The bits that are in either
    bitwise_or = "BitwiseOr";
    /// The bits that are in one of both
    bitwise_xor = "BitwiseXor";
    /// `x << y`
    left_shift = "LeftShift";
    /// `x >> y`
    right_shift = "RightShift";
}

impl Scope {
    /// The angle of the point `(x, y)`.
    pub fn atan2(&self, y: Output, x: Output) -> Output {
        self.op("Atan2").input(y).input(x).output()
    }

    /// The sum of tensors of one shape.
    pub fn add_n(&self, inputs: &[Output]) -> Output {
        self.op("AddN").input(inputs).output()
    }
}
