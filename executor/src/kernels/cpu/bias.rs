//! Bias vectors added to a channel axis.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
