//! Send and Recv: the ends of an edge between devices.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
