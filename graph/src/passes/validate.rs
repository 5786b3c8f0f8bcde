//! The structural checks of a graph, which every pass must preserve.

use crate::error::{Code, Error, Result};
use crate::graph::{CONTROL, Graph};
use crate::topology::Topology;

/// Checks that node names are unique and that each name is mapped to its node, that inputs are complete, in order and
/// of the right types, that attributes are present and allowed, and that each cycle contains a NextIteration.
///
/// # Errors
/// The error of the first check that fails, with the node's name.
pub fn validate(graph: &Graph) -> Result<()> {
    let topology = Topology::new(graph);
    for (id, node) in graph.nodes() {
        let broken =
            |message: String| Err(Error::Node { code: Code::Internal, node: node.name.to_string(), message });
        if node.name.is_empty() || graph.find(&node.name) != Some(id) {
            return broken(format!("the name '{}' does not find its node", node.name));
        }
        let mut slot = 0;
        for producer in topology.producers(id) {
            let control = producer.output == CONTROL;
            if control != (producer.input == CONTROL) || (!control && producer.input != slot) {
                return broken(format!(
                    "input {slot} is missing, or comes twice, before the edge from '{}'",
                    graph.node(producer.node).name
                ));
            }
            slot += !control as u32;
        }
        graph.check_inputs(id)?;
    }
    topology.order(graph)?;
    Ok(())
}
