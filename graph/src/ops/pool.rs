//! Two-dimensional pooling and its gradients.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
