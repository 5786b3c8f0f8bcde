//! Slices, and the gradients of slices.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
