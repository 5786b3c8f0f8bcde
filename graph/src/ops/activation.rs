//! Activation functions of neural networks.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
