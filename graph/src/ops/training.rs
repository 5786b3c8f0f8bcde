//! Optimizer updates.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
