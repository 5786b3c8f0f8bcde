//! Truth values of the host, which decide whether a loop goes on: what is made of them stays there, so that no turn waits for
//! a GPU to say so.

use device::Device;
use device::Result;
use device::kernel::ON_HOST;
use graph::{Graph, Node, NodeId, Topology};

/// Ops of nothing but truth values.
const OPS: &[&str] = &["LogicalAnd", "LogicalOr", "LogicalNot"];

/// A device's partition in which nodes that make truth values of such as are made on the host do so there, too.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is no loop.
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

/// Whether the device's kernel of the node leaves this output in host memory.
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
