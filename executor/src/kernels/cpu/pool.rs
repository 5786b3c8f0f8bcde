//! Two-dimensional pooling and its gradients.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
