//! Ops that pass their inputs through.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
