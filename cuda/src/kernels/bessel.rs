//! Bessel functions of orders 0 and 1.

use super::elementwise::map;
use crate::engine::Source;
use device::kernel::KernelDef;
use graph::DType::{self, *};

static SOURCE: Source = Source { file: "bessel.cu", text: include_str!("bessel.cu") };

const TYPES: &[(&str, &[DType])] = &[("T", &[Half, Float, Double])];

macro_rules! kernels {
    ($($op:literal)*) => { &[$(KernelDef::enqueuing($op, TYPES, |init| map(init, &SOURCE, $op, 0.0)),)*] };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    "BesselI0" "BesselI0e" "BesselI1" "BesselI1e" "BesselJ0" "BesselJ1" "BesselK0" "BesselK0e" "BesselK1" "BesselK1e"
    "BesselY0" "BesselY1"
};
