//! Choosing elements by condition.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
