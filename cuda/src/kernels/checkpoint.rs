//! What is set aside of variables for checkpoints: their values are on their way to the host, where all else of it is.

use super::host::same_as_cpu;
use device::kernel::{ALL_ARGUMENTS, KernelDef};

pub(super) const KERNELS: &[KernelDef] = &[
    same_as_cpu("SetAsideVariable", &[], ALL_ARGUMENTS),
    same_as_cpu("KeepSnapshot", &[], ALL_ARGUMENTS),
    same_as_cpu("SaveSnapshot", &[], ALL_ARGUMENTS),
];
