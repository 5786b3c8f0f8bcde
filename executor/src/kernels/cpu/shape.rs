//! Ops that ask for shapes, or give the same elements another shape.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
