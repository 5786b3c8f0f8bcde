//! Ops that ask for shapes, or give the same elements another shape.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
