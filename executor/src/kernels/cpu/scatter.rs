//! Updates of slices of variables.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
