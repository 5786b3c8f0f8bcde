//! Functions of one operand, element by element, and the element-wise parts of their gradients.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
