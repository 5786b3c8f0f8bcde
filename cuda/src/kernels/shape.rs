//! Ops that broadcast to another shape. Ops that only return or change a shape use the CPU's kernels; see
//! `host`.

use super::copy::make_box_copy;
use super::support::COPIED;
use device::kernel::KernelDef;
use kernels::plan::shape::broadcast_to;

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    host_memory: &["shape"],
    ..KernelDef::enqueuing("BroadcastTo", &[("T", COPIED)], |init| make_box_copy(init, broadcast_to))
}];
