//! Ops that repeat elements to another shape. Those that only ask for shapes, or give one to the same elements, are the
//! CPU's: `host`.

use super::moved::taking;
use super::support::MOVED;
use device::kernel::KernelDef;
use kernels::shape::broadcast_to;

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    host_memory: &["shape"],
    ..KernelDef::enqueuing("BroadcastTo", &[("T", MOVED)], |init| taking(init, broadcast_to))
}];
