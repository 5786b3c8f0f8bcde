//! Kernels of optionals, which are variants with or without a value: host tensors on the CPU, [`AnyTensor`] values on a
//! device with separate memory.
//!
//! [`AnyTensor`]: device::value::AnyTensor

use crate::plan::optional::{from_value, get_value, has_value, none};
use device::kernel::KernelDef;
use graph::Tensor;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("OptionalFromValue", &[], from_value::<Tensor>),
    KernelDef::of("OptionalNone", &[], none::<Tensor>),
    KernelDef::of("OptionalHasValue", &[], has_value::<Tensor>),
    KernelDef::of("OptionalGetValue", &[], get_value::<Tensor>),
];
