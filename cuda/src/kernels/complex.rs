//! Complex numbers: construction, parts and conjugation.

use super::elementwise::{broadcast, map, zip};
use crate::engine::Source;
use device::kernel::KernelDef;
use graph::DType::*;
use kernels::numeric::dispatch::COMPLEX;

pub(super) static SOURCE: Source = Source { file: "complex.cu", text: include_str!("complex.cu") };

/// Defines each op's kernels for single and for double precision.
macro_rules! kernels {
    ($($part:literal)*) => {
        &[
            $(
                KernelDef::enqueuing($part, &[("T", &[Complex64]), ("Tout", &[Float])], |init| {
                    map(init, &SOURCE, $part, 0.0)
                }),
                KernelDef::enqueuing($part, &[("T", &[Complex128]), ("Tout", &[Double])], |init| {
                    map(init, &SOURCE, $part, 0.0)
                }),
            )*
            KernelDef::enqueuing("Complex", &[("T", &[Float]), ("Tout", &[Complex64])], |init| {
                zip(init, &SOURCE, "Make", 0.0, broadcast)
            }),
            KernelDef::enqueuing("Complex", &[("T", &[Double]), ("Tout", &[Complex128])], |init| {
                zip(init, &SOURCE, "Make", 0.0, broadcast)
            }),
            KernelDef::enqueuing("Conj", &[("T", COMPLEX)], |init| map(init, &SOURCE, "Conj", 0.0)),
        ]
    };
}

pub(super) const KERNELS: &[KernelDef] = kernels! { "Real" "Imag" "ComplexAbs" "Angle" };
