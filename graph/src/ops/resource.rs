//! Variables behind resource handles.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
