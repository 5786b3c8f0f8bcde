//! Changes of element type.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
