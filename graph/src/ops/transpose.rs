//! Reordering and repeating elements: transpose, tile, pad, reverse.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
