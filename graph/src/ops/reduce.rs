//! Reductions over axes.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
