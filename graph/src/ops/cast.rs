//! Changes of element type.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
