//! Mutex ops for graphs that place them on a GPU; the mutexes are in host memory.

use super::host::same_as_cpu;
use device::kernel::{ALL_ARGUMENTS, KernelDef};

pub(super) const KERNELS: &[KernelDef] = &[
    same_as_cpu("MutexV2", &[], ALL_ARGUMENTS),
    same_as_cpu("MutexLock", &[], ALL_ARGUMENTS),
    same_as_cpu("ConsumeMutexLock", &[], ALL_ARGUMENTS),
];
