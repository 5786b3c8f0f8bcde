//! Comparisons and logic.

use super::elementwise::{broadcast, map, same_shape, zip};
use super::support::ORDERED;
use crate::engine::Source;
use device::kernel::KernelDef;
use graph::DType::{self, *};
use kernels::numeric::dispatch::FLOATS;

static SOURCE: Source = Source { file: "compare.cu", text: include_str!("compare.cu") };

const EQUAL: &[DType] = &[
    Float, Double, Half, BFloat16, Bool, Int8, Int16, Int64, UInt8, UInt16, UInt32, UInt64, Complex64,
    Complex128,
];

macro_rules! kernels {
    ($($types:expr, $($op:literal)*;)*) => {
        &[
            $($(KernelDef::enqueuing($op, $types, |init| zip(init, &SOURCE, $op, 0.0, broadcast)),)*)*
            KernelDef::enqueuing("ApproximateEqual", &[("T", FLOATS)], |init| {
                zip(init, &SOURCE, "ApproximateEqual", init.attr::<f32>("tolerance")?.into(), same_shape)
            }),
            KernelDef::enqueuing("LogicalNot", &[], |init| map(init, &SOURCE, "LogicalNot", 0.0)),
        ]
    };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    &[("T", EQUAL)], "Equal" "NotEqual";
    &[("T", ORDERED)], "Less" "LessEqual" "Greater" "GreaterEqual";
    &[], "LogicalAnd" "LogicalOr";
};
