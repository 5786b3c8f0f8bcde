//! Ops that pass their inputs through.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
