//! Softmax, and cross entropies over it.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
