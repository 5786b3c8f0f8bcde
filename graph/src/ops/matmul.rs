//! Products of matrices and of batches of them.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
