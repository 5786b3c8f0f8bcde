//! Snapshots of variables for checkpoints: the kernels are the CPU's, because a snapshot is written from host
//! memory.

use super::host::same_as_cpu;
use device::kernel::{ALL_ARGUMENTS, KernelDef};

pub(super) const KERNELS: &[KernelDef] = &[
    same_as_cpu("SetAsideVariable", &[], ALL_ARGUMENTS),
    same_as_cpu("KeepSnapshot", &[], ALL_ARGUMENTS),
    same_as_cpu("SaveSnapshot", &[], ALL_ARGUMENTS),
];
