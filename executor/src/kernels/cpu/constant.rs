//! Sources of values: constants, placeholders, fills, ranges.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
