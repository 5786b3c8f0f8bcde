//! Ops on optional values, which are tensors of dtype variant. The values are in the GPU's memory, except
//! values of `int32` and variants.

use super::memory::HOSTED;
use super::support::COPIED;
use device::kernel::KernelDef;
use device::value::AnyTensor;
use kernels::plan::optional::{from_value, get_value, has_value, none};

const COMPONENTS: &[&str] = &["components"];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("OptionalNone", &[], none::<AnyTensor>),
    KernelDef {
        host_memory: &["has_value"],
        ..KernelDef::of("OptionalHasValue", &[], has_value::<AnyTensor>)
    },
    KernelDef::of("OptionalFromValue", &[("Toutput_types", COPIED)], from_value::<AnyTensor>),
    KernelDef {
        host_memory: COMPONENTS,
        ..KernelDef::of("OptionalFromValue", &[("Toutput_types", HOSTED)], from_value::<AnyTensor>)
    },
    KernelDef::of("OptionalGetValue", &[("output_types", COPIED)], get_value::<AnyTensor>),
    KernelDef {
        host_memory: COMPONENTS,
        ..KernelDef::of("OptionalGetValue", &[("output_types", HOSTED)], get_value::<AnyTensor>)
    },
];
