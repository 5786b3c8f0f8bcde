//! Softmax, and cross entropies over it.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
