//! Pseudo-random numbers: Philox streams, the same as TensorFlow for the same seeds.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
