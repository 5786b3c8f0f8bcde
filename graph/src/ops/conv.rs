//! Two-dimensional convolution and its gradients.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
