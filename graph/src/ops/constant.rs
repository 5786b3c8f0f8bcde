//! Sources of values: constants, placeholders, fills, ranges.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
