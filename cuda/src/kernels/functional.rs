//! The ops for the arguments and results of functions that run on a GPU, and for remote calls.

use super::host::same_as_cpu;
use device::kernel::{ALL_ARGUMENTS, KernelDef};

/// Defines the kernel of a function's argument or result, which outputs its input unchanged, in host or device
/// memory.
const fn end(op: &'static str) -> KernelDef {
    KernelDef { any_memory: ALL_ARGUMENTS, ..same_as_cpu(op, &[], &[]) }
}

pub(super) const KERNELS: &[KernelDef] =
    &[end("_Arg"), end("_Retval"), same_as_cpu("RemoteCall", &[], ALL_ARGUMENTS)];
