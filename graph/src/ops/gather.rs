//! Picking and placing elements by index.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
