//! The element-wise ops as functions of the `.cu` files, used both in their own kernels and in fused chains.

use crate::engine::Source;
use crate::kernels::{activation, binary, unary};
use kernels::plan::fused::chain::{Arity, Pairing};

/// The function of one op: a structure in a `.cu` file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function {
    /// The file that defines the function.
    pub(super) source: &'static Source,
    /// The name of the structure in `source`.
    pub(super) name: &'static str,
}

/// Returns whether fused chains may contain the op.
pub(in crate::kernels) fn has_function(op: &str) -> bool {
    function(op).is_some()
}

/// Returns the op's arity and function, if fused chains may contain the op. A `BiasAdd` in a chain must have
/// the format `NHWC`, and an `AddN` two inputs.
pub(super) fn function(op: &str) -> Option<(Arity, Function)> {
    let (source, name, form) = match op {
        "Inv" => (&unary::SOURCE, "Reciprocal", Arity::Map),
        "InvGrad" => (&unary::SOURCE, "ReciprocalGrad", Arity::Zip(Pairing::Equal)),
        "Add" => (&binary::SOURCE, "AddV2", Arity::Zip(Pairing::Broadcast)),
        "AddN" => (&binary::SOURCE, "AddV2", Arity::Zip(Pairing::Equal)),
        "BiasAdd" => (&binary::SOURCE, "AddV2", Arity::Zip(Pairing::Bias)),
        // The table names the device function of any other op like the op.
        op => {
            let (source, form, names) = TABLE.iter().find(|(_, _, names)| names.contains(&op))?;
            (*source, *names.iter().find(|name| **name == op)?, *form)
        }
    };
    Some((form, Function { source, name }))
}

type Row = (&'static Source, Arity, &'static [&'static str]);

static TABLE: [Row; 5] = [
    (
        &unary::SOURCE,
        Arity::Map,
        &[
            "Neg",
            "Abs",
            "Sign",
            "Square",
            "Reciprocal",
            "Sqrt",
            "Rsqrt",
            "Floor",
            "Ceil",
            "Round",
            "Rint",
            "Expm1",
            "Log1p",
            "Sin",
            "Cos",
            "Erf",
            "Exp",
            "Log",
            "Tanh",
            "Sigmoid",
        ],
    ),
    (
        &unary::SOURCE,
        Arity::Zip(Pairing::Equal),
        &["SqrtGrad", "RsqrtGrad", "ReciprocalGrad", "TanhGrad", "SigmoidGrad"],
    ),
    (&activation::SOURCE, Arity::Map, &["Relu", "Relu6", "Elu", "Selu", "Softplus", "Softsign"]),
    (
        &activation::SOURCE,
        Arity::Zip(Pairing::Equal),
        &["ReluGrad", "Relu6Grad", "EluGrad", "SeluGrad", "SoftplusGrad", "SoftsignGrad"],
    ),
    (
        &binary::SOURCE,
        Arity::Zip(Pairing::Broadcast),
        &[
            "AddV2",
            "Sub",
            "Mul",
            "RealDiv",
            "Div",
            "DivNoNan",
            "MulNoNan",
            "Maximum",
            "Minimum",
            "SquaredDifference",
            "Pow",
        ],
    ),
];
