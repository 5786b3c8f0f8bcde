//! Comparisons and logic, element by element, with broadcasting.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
