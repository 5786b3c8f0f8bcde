//! Send and Recv: the ends of an edge between devices.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[];
