//! Functions of one operand, element by element, and the element-wise parts of their gradients.

use crate::kernel::KernelDef;

pub(super) const KERNELS: &[KernelDef] = &[];
