//! Picking and placing elements by index.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
