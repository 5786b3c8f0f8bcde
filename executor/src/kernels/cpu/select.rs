//! Choosing elements by condition.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
