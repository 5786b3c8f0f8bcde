//! Fusion: the choice of nodes that a device computes with one kernel.

use crate::host_logic::keep_on_host;
use device::Device;
use device::Result;
use graph::ops::bias::data_format;
use graph::ops::window::DataFormat;
use graph::passes::{fuse_norms, fuse_products};
use graph::{Graph, Node};

/// Returns a device's partition in which chains of element-wise ops are one node each. On a GPU, products are also
/// fused with the bias and activation that follow them, and normalisations with the ops that follow them, and their
/// gradients with the ops that precede them, if the device has kernels for the fused ops; booleans of the host stay on
/// the host. The results are the same: only traces and the partition itself show the difference.
///
/// # Errors
/// Those of [`graph::passes::fuse`].
pub fn fuse(graph: Graph, device: &Device) -> Result<Graph> {
    // The CPU is left out, because its kernels of these fused ops would run the kernels of the parts one by one.
    let graph = match device.processor().has_own_memory() {
        true => {
            let takes = |node: &Node| has_kernel(device, node);
            fuse_products(fuse_norms(keep_on_host(graph, device)?, &takes)?, &takes)?
        }
        false => graph,
    };
    Ok(graph::passes::fuse(graph, &|node| is_fusible(device, node))?)
}

/// Returns whether a chain may contain the node: the device's kernel of chains supports the op with these attributes,
/// and the device has a kernel of the op itself, for shapes that chains do not support.
fn is_fusible(device: &Device, node: &Node) -> bool {
    let (kernels, op) = (device.kernels(), node.op.name());
    kernels.is_chained(op)
        && kernels.of_op("_FusedElementwise").iter().any(|def| def.supports(node))
        && has_kernel(device, node)
        && (op != "BiasAdd" || data_format(node).is_ok_and(|format| format == DataFormat::Nhwc))
        // An AddN of more than two inputs rounds once, but a chain would round each partial sum.
        && (op != "AddN" || node.attr::<i64>("N").is_ok_and(|count| count == 2))
}

/// Returns whether the device has a kernel of the node whose tensors are in the device's memory.
fn has_kernel(device: &Device, node: &Node) -> bool {
    device.find_kernel(node).is_some_and(|def| !def.is_absent && def.host_memory.is_empty())
}
