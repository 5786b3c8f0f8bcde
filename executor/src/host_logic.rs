//! Boolean logic on the host: ops on booleans that are computed in host memory stay there, so that the condition of a
//! loop does not wait for a GPU.

use device::Device;
use device::Result;
use device::kernel::ON_HOST;
use graph::{Graph, Node, NodeId, Topology};

/// Ops whose inputs and outputs are all booleans.
const OPS: &[&str] = &["LogicalAnd", "LogicalOr", "LogicalNot"];

/// Returns a device's partition in which logical ops are computed in host memory if all their inputs are in host
/// memory.
///
/// # Errors
/// `InvalidArgument` that names a node of a cycle that is not a loop.
pub(crate) fn keep_on_host(mut graph: Graph, device: &Device) -> Result<Graph> {
    let is_logic = |graph: &Graph, id: NodeId| OPS.contains(&graph.node(id).op.name());
    if !graph.ids().any(|id| is_logic(&graph, id)) {
        return Ok(graph);
    }
    let topology = Topology::new(&graph);
    for id in topology.order(&graph)? {
        let mut given = topology.producers(id).iter().filter(|producer| !producer.is_control());
        if is_logic(&graph, id) && given.all(|p| is_made_on_host(device, graph.node(p.node), p.output)) {
            graph.node_mut(id).attrs.set(ON_HOST, true);
        }
    }
    Ok(graph)
}

/// Returns whether the device's kernel of the node produces this output in host memory.
fn is_made_on_host(device: &Device, node: &Node, output: u32) -> bool {
    let Some(def) = device.find_kernel(node) else { return false };
    let mut left = output as usize;
    for arg in node.op.outputs.iter() {
        let count = node.op.arg_count(arg, &node.attrs).unwrap_or_default();
        if left < count {
            return def.is_on_host(arg.name);
        }
        left -= count;
    }
    false
}
