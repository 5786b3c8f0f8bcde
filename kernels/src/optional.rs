//! Kernels of optionals, which are variants with or without a value: host tensors on the CPU, [`Placed`] values on a
//! device with separate memory.
//!
//! [`Placed`]: device::value::Placed

use crate::plan::optional::{from_value, get_value, has_value, none};
use device::kernel::KernelDef;
use graph::Tensor;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("OptionalFromValue", &[], from_value::<Tensor>),
    KernelDef::of("OptionalNone", &[], none::<Tensor>),
    KernelDef::of("OptionalHasValue", &[], has_value::<Tensor>),
    KernelDef::of("OptionalGetValue", &[], get_value::<Tensor>),
];
