//! Joining and splitting tensors along an axis.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
