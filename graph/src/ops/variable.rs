//! Variables behind references (TensorFlow 1).

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
