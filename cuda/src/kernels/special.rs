//! Special functions of two operands, element by element, with broadcasting.

use super::elementwise::{broadcast, zip};
use crate::engine::Source;
use device::kernel::KernelDef;
use graph::DType::{self, *};

static SOURCE: Source =
    Source { file: "special.cu", text: concat!(include_str!("unary.cu"), include_str!("special.cu")) };

const TYPES: &[(&str, &[DType])] = &[("T", &[Float, Double])];

macro_rules! kernels {
    ($($op:literal)*) => { &[$(KernelDef::enqueuing($op, TYPES, |init| zip(init, &SOURCE, $op, 0.0, broadcast)),)*] };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    "Zeta" "Polygamma" "Igamma" "Igammac" "IgammaGradA" "RandomGammaGrad" "NextAfter"
};
