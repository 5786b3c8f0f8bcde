//! Assertions and messages.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
