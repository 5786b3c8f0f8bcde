//! Activation functions of neural networks.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
