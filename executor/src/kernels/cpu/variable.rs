//! Variables behind references (TensorFlow 1).

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
