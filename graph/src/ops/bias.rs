//! Bias vectors added to a channel axis.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
