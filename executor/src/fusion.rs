//! Fusion: the choice of nodes that a device computes with one kernel.

use crate::host_logic::keep_on_host;
use device::Device;
use device::Result;
use graph::ops::bias::data_format;
use graph::ops::window::DataFormat;
use graph::passes::{fuse_norms, fuse_products};
use graph::{Graph, Node};

/// Returns a device's partition in which each chain of element-wise ops is one node. A GPU with kernels for the fused
/// ops also computes these groups by one kernel: a matrix product with the bias and activation that follow it, a
/// normalisation with the ops that follow it, and the gradient of a normalisation with the ops that precede it. Logic
/// on booleans in host memory stays there. Only traces and the partition itself show a difference: the results of steps
/// are the same.
///
/// # Errors
/// Those of [`graph::passes::fuse`].
pub fn fuse(graph: Graph, device: &Device) -> Result<Graph> {
    // The CPU is left out, because its kernels of fused products and normalisations would run the kernels of the parts
    // one by one.
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
