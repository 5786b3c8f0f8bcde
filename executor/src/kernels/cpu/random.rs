//! Pseudo-random numbers: Philox streams, the same as TensorFlow for the same seeds.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
