//! Assertions and messages.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
