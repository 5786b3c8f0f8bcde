//! Joining and splitting tensors along an axis.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
