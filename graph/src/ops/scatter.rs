//! Updates of slices of variables.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
