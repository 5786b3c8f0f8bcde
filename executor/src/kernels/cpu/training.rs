//! Optimizer updates.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
