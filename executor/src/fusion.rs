//! Which ops a device computes as one.

use crate::device::Device;
use crate::error::Result;
use crate::kernels::cpu::fused::is_fusible;
use graph::Graph;

/// A device's partition with chains of element-wise ops as one node each, where the device has a kernel for them: a
/// GPU has none yet. Nobody sees the difference but who looks at nodes: traces and the partition itself.
///
/// # Errors
/// As [`graph::passes::fuse`].
pub fn fuse(graph: Graph, device: &dyn Device) -> Result<Graph> {
    if device.has_own_memory() {
        return Ok(graph);
    }
    Ok(graph::passes::fuse(graph, &is_fusible)?)
}
