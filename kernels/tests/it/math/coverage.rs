//! Tests that each op has a kernel for each dtype that its signature and TensorFlow's CPU kernels allow.

use DType::*;
use graph::{AttrValue, DType, Node};

const FLOATS: &[DType] = &[BFloat16, Half, Float, Double];
const SIGNED: &[DType] = &[BFloat16, Half, Float, Double, Int8, Int16, Int32, Int64];
const INTEGERS: &[DType] = &[Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
const REALS: &[DType] =
    &[BFloat16, Half, Float, Double, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
const ADD: &[DType] = &[BFloat16, Half, Float, Double, UInt8, Int8, Int16, Int32, Int64, String];
const EQUAL: &[DType] = &[
    BFloat16, Half, Float, Double, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Bool, String,
    QInt8, QUInt8, QInt16, QUInt16, QInt32,
];
const ARG: &[DType] =
    &[BFloat16, Half, Float, Double, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Bool];

const OPS: &[(&[&str], &[DType])] = &[
    (&["Add"], ADD),
    (&["AddV2", "Sub", "Mul", "Div", "FloorDiv", "FloorMod", "TruncateDiv"], REALS),
    (&["Maximum", "Minimum", "AddN", "Square"], REALS),
    (&["RealDiv", "DivNoNan", "MulNoNan", "Atan2", "Xdivy", "Xlogy", "Xlog1py"], FLOATS),
    (&["Mod", "TruncateMod"], &[Float, Double, Int32, Int64]),
    (&["Pow", "Neg", "Abs", "Sign"], SIGNED),
    (&["SquaredDifference"], &[BFloat16, Half, Float, Double, Int32, Int64]),
    (
        &["BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift", "Invert", "PopulationCount"],
        INTEGERS,
    ),
    (
        &["Exp", "Expm1", "Log", "Log1p", "Sqrt", "Rsqrt", "Reciprocal", "Inv", "Floor", "Ceil", "Rint"],
        FLOATS,
    ),
    (&["Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"], FLOATS),
    (&["Erf", "Erfc", "Lgamma", "Digamma", "IsNan", "IsInf", "IsFinite", "Tanh", "Sigmoid"], FLOATS),
    (&["Round"], &[BFloat16, Half, Float, Double, Int32, Int64]),
    (&["SqrtGrad", "RsqrtGrad", "ReciprocalGrad", "InvGrad", "TanhGrad", "SigmoidGrad"], FLOATS),
    (&["Equal", "NotEqual"], EQUAL),
    (&["Less", "LessEqual", "Greater", "GreaterEqual"], REALS),
    (&["ApproximateEqual"], &[Float, Double]),
    (&["LogicalAnd", "LogicalOr", "LogicalNot", "All", "Any", "Cast", "Bitcast"], &[]),
    (&["Sum", "Mean", "Prod", "Max", "Min", "EuclideanNorm", "Cumsum", "Cumprod"], REALS),
    (&["ArgMax", "ArgMin"], ARG),
    (&["MatMul", "BatchMatMul"], &[BFloat16, Half, Float, Double, Int32, Int64]),
    (&["BatchMatMulV2"], &[BFloat16, Half, Float, Double, Int16, Int32, Int64]),
];

#[test]
fn every_op_has_a_kernel_for_each_dtype() {
    for (names, types) in OPS {
        for name in *names {
            let Some(op) = graph::ops::lookup(name) else { panic!("no op {name}") };
            assert!(!anabranch_kernels::table().of_op(name).is_empty(), "{name}");
            for &dtype in *types {
                let node = Node::new("test", op).with_attr("T", dtype);
                let spec = op.attr_spec("T").map(|s| s.check(&AttrValue::Type(dtype)));
                assert_eq!(spec, Some(Ok(())), "{name} of {dtype}");
                assert!(anabranch_kernels::table().find(&node).is_some(), "{name} of {dtype}");
            }
        }
    }
}
