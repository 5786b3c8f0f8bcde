//! Reordering and repeating elements: transpose, tile, pad, reverse.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
