//! Products of matrices and of batches of them.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
