//! Variables behind resource handles.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
