//! The ends of functions that run on a GPU, and calls from there on other devices of the task.

use super::host::same_as_cpu;
use device::kernel::{ALL_ARGUMENTS, KernelDef};

/// What comes in and goes out stays where it is.
const fn end(op: &'static str) -> KernelDef {
    KernelDef { any_memory: ALL_ARGUMENTS, ..same_as_cpu(op, &[], &[]) }
}

pub(super) const KERNELS: &[KernelDef] =
    &[end("_Arg"), end("_Retval"), same_as_cpu("RemoteCall", &[], ALL_ARGUMENTS)];
