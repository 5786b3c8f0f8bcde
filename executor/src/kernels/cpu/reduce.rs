//! Reductions over axes.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
