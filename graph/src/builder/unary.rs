//! Builders of functions of one operand.

use super::Scope;
use crate::graph::Output;

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident = $op:literal;)*) => {
        impl Scope {
            $($(#[$doc])* pub fn $name(&self, x: Output) -> Output {
                self.op($op).input(x).output()
            })*
        }
    };
}

unary! {
    /// Returns `-x`.
    neg = "Neg";
    /// Returns the absolute value.
    abs = "Abs";
    /// Returns the sign: -1, 0 or 1.
    sign = "Sign";
    /// Returns `e^x`.
    exp = "Exp";
    /// Returns `e^x - 1`, accurate for small `x`.
    expm1 = "Expm1";
    /// Returns the natural logarithm.
    log = "Log";
    /// Returns `log(1 + x)`, accurate for small `x`.
    log1p = "Log1p";
    /// Returns the square root.
    sqrt = "Sqrt";
    /// Returns `1 / sqrt(x)`.
    rsqrt = "Rsqrt";
    /// Returns `x * x`.
    square = "Square";
    /// Returns `1 / x`.
    reciprocal = "Reciprocal";
    /// Returns `x` rounded down.
    floor = "Floor";
    /// Returns `x` rounded up.
    ceil = "Ceil";
    /// Returns `x` rounded to the nearest integer, halves to even.
    round = "Round";
    /// Returns the sine.
    sin = "Sin";
    /// Returns the cosine.
    cos = "Cos";
    /// Returns the tangent.
    tan = "Tan";
    /// Returns the inverse sine.
    asin = "Asin";
    /// Returns the inverse cosine.
    acos = "Acos";
    /// Returns the inverse tangent.
    atan = "Atan";
    /// Returns the hyperbolic sine.
    sinh = "Sinh";
    /// Returns the hyperbolic cosine.
    cosh = "Cosh";
    /// Returns the inverse hyperbolic sine.
    asinh = "Asinh";
    /// Returns the inverse hyperbolic cosine.
    acosh = "Acosh";
    /// Returns the inverse hyperbolic tangent.
    atanh = "Atanh";
    /// Returns the hyperbolic tangent.
    tanh = "Tanh";
    /// Returns `1 / (1 + e^-x)`.
    sigmoid = "Sigmoid";
    /// Returns the error function.
    erf = "Erf";
    /// Returns `1 - erf(x)`, accurate for large `x`.
    erfc = "Erfc";
    /// Returns the logarithm of the absolute value of the gamma function.
    lgamma = "Lgamma";
    /// Returns the derivative of [`Scope::lgamma`].
    digamma = "Digamma";
    /// Returns true where `x` is NaN.
    is_nan = "IsNan";
    /// Returns true where `x` is infinite.
    is_inf = "IsInf";
    /// Returns true where `x` is neither infinite nor NaN.
    is_finite = "IsFinite";
    /// Returns `x` with all bits inverted.
    invert = "Invert";
    /// Returns the number of bits that are set.
    population_count = "PopulationCount";
}
