//! Slices, and the gradients of slices.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
