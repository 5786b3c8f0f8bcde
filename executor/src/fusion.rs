//! Which ops a device computes as one.

use crate::hosted::keep_on_host;
use device::Device;
use device::Result;
use graph::ops::bias::data_format;
use graph::ops::window::DataFormat;
use graph::passes::{fuse_norms, fuse_products};
use graph::{Graph, Node};

/// A device's partition with chains of element-wise ops as one node each, and on a GPU products with the bias and the
/// activation that follow them, and normalisations with what follows them and their gradients with what precedes those,
/// where the device has kernels for them; truth values of the host stay there. Nobody sees the difference but who looks
/// at nodes: traces and the partition itself.
///
/// # Errors
/// As [`graph::passes::fuse`].
pub fn fuse(graph: Graph, device: &Device) -> Result<Graph> {
    // The CPU's kernels of such products and normalisations run the kernels of their parts.
    let graph = match device.processor().has_own_memory() {
        true => {
            let takes = |node: &Node| has_kernel(device, node);
            fuse_products(fuse_norms(keep_on_host(graph, device)?, &takes)?, &takes)?
        }
        false => graph,
    };
    Ok(graph::passes::fuse(graph, &|node| is_fusible(device, node))?)
}

/// Whether a chain may have the node: the device's kernel of chains has the op, with these attributes, and the device
/// has a kernel of the op itself, for shapes that no chain takes.
fn is_fusible(device: &Device, node: &Node) -> bool {
    let (kernels, op) = (device.kernels(), node.op.name());
    kernels.is_chained(op)
        && kernels.of_op("_FusedElementwise").iter().any(|def| def.supports(node))
        && has_kernel(device, node)
        && (op != "BiasAdd" || data_format(node).is_ok_and(|format| format == DataFormat::Nhwc))
        // More are rounded once, where a chain rounds each sum.
        && (op != "AddN" || node.attr::<i64>("N").is_ok_and(|count| count == 2))
}

/// Whether the device has a kernel of the node whose tensors are in the device's memory.
fn has_kernel(device: &Device, node: &Node) -> bool {
    device.find_kernel(node).is_some_and(|def| !def.is_absent && def.host_memory.is_empty())
}
