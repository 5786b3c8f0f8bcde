//! Tensors that stay on a GPU between the steps of a session; tensors of `int32` and variants stay on the host.

use super::host::same_as_cpu;
use super::memory::HOSTED;
use super::support::COPIED;
use device::kernel::{ALL_ARGUMENTS, KernelDef};

pub(super) const KERNELS: &[KernelDef] = &[
    same_as_cpu("GetSessionHandle", &[("T", COPIED)], &["handle"]),
    same_as_cpu("GetSessionHandle", &[("T", HOSTED)], ALL_ARGUMENTS),
    same_as_cpu("GetSessionHandleV2", &[("T", COPIED)], &["handle"]),
    same_as_cpu("GetSessionHandleV2", &[("T", HOSTED)], ALL_ARGUMENTS),
    same_as_cpu("GetSessionTensor", &[("dtype", COPIED)], &["handle"]),
    same_as_cpu("GetSessionTensor", &[("dtype", HOSTED)], ALL_ARGUMENTS),
    same_as_cpu("DeleteSessionTensor", &[], ALL_ARGUMENTS),
];
