//! Functions of one operand, element by element, and the element-wise parts of their gradients.

use super::elementwise::{map, same_size, zip};
use super::support::NUMBERS;
use crate::engine::Source;
use device::kernel::KernelDef;
use kernels::numeric::dispatch::{COMPLEX, FLOATS, INTEGERS};

pub(super) static SOURCE: Source = Source { file: "unary.cu", text: include_str!("unary.cu") };

/// Defines kernels of ops whose function in the `.cu` file has the op's name, and of ops that use another op's
/// function.
macro_rules! kernels {
    ($($types:ident: $($op:literal)*;)* => $($function:literal = $alias:literal)*; gradients: $($gradient:literal)*) => {
        &[
            $($(KernelDef::enqueuing($op, &[("T", $types)], |init| map(init, &SOURCE, $op, 0.0)),)*)*
            $(KernelDef::enqueuing($alias, &[("T", FLOATS)], |init| map(init, &SOURCE, $function, 0.0)),)*
            $(KernelDef::enqueuing($gradient, &[("T", FLOATS)], |init| {
                zip(init, &SOURCE, $gradient, 0.0, same_size)
            }),)*
            KernelDef::enqueuing("InvGrad", &[("T", FLOATS)], |init| zip(init, &SOURCE, "ReciprocalGrad", 0.0, same_size)),
        ]
    };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    NUMBERS: "Neg" "Abs" "Sign" "Square" "Round";
    FLOATS: "Rint" "Reciprocal" "Exp" "Expm1" "Log" "Log1p" "Sqrt" "Rsqrt" "Floor" "Ceil" "Sin" "Cos" "Tan" "Asin"
        "Acos" "Atan" "Sinh" "Cosh" "Tanh" "Asinh" "Acosh" "Atanh" "Sigmoid" "Erf" "Erfc" "Lgamma" "Digamma" "IsNan"
        "IsInf" "IsFinite";
    COMPLEX: "Neg" "Square";
    INTEGERS: "Invert" "PopulationCount";
    => "Reciprocal" = "Inv";
    gradients: "SqrtGrad" "RsqrtGrad" "ReciprocalGrad" "TanhGrad" "SigmoidGrad"
};
