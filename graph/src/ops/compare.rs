//! Comparisons and logic, element by element, with broadcasting.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
