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
    /// `-x`
    neg = "Neg";
    /// The absolute value
    abs = "Abs";
    /// -1, 0 or 1
    sign = "Sign";
    /// `e^x`
    exp = "Exp";
    /// `e^x - 1`, exact for small `x`
    expm1 = "Expm1";
    /// The natural logarithm
    log = "Log";
    /// `log(1 + x)`, exact for small `x`
    log1p = "Log1p";
    /// The square root
    sqrt = "Sqrt";
    /// `1 / sqrt(x)`
    rsqrt = "Rsqrt";
    /// `x * x`
    square = "Square";
    /// `1 / x`
    reciprocal = "Reciprocal";
    /// Rounded down
    floor = "Floor";
    /// Rounded up
    ceil = "Ceil";
    /// To the nearest whole number, halves to even ones
    round = "Round";
    /// The sine
    sin = "Sin";
    /// The cosine
    cos = "Cos";
    /// The tangent
    tan = "Tan";
    /// The inverse of the sine
    asin = "Asin";
    /// The inverse of the cosine
    acos = "Acos";
    /// The inverse of the tangent
    atan = "Atan";
    /// The hyperbolic sine
    sinh = "Sinh";
    /// The hyperbolic cosine
    cosh = "Cosh";
    /// The inverse of the hyperbolic sine
    asinh = "Asinh";
    /// The inverse of the hyperbolic cosine
    acosh = "Acosh";
    /// The inverse of the hyperbolic tangent
    atanh = "Atanh";
    /// The hyperbolic tangent
    tanh = "Tanh";
    /// `1 / (1 + e^-x)`
    sigmoid = "Sigmoid";
    /// The error function
    erf = "Erf";
    /// `1 - erf(x)`, exact for large `x`
    erfc = "Erfc";
    /// The logarithm of the absolute value of the gamma function
    lgamma = "Lgamma";
    /// The derivative of `lgamma`
    digamma = "Digamma";
    /// Where `x` is not a number
    is_nan = "IsNan";
    /// Where `x` is infinite
    is_inf = "IsInf";
    /// Where `x` is neither infinite nor NaN
    is_finite = "IsFinite";
    /// The bits that are not in `x`
    invert = "Invert";
    /// The number of bits that are set
    population_count = "PopulationCount";
}
