//! Leaves out what does not lead to the nodes that are wanted.

use super::retain;
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::topology::Topology;

/// The graph of these nodes and their ancestors, by data and by control edges, in their order.
pub fn prune(graph: &Graph, wanted: &[NodeId]) -> Result<Graph> {
    let topology = Topology::new(graph);
    let mut becomes = vec![None; graph.len()];
    let mut open = Vec::new();
    for &id in wanted {
        if becomes[id.index()].replace(id).is_none() {
            open.push(id);
        }
    }
    while let Some(id) = open.pop() {
        for producer in topology.producers(id) {
            if becomes[producer.node.index()].replace(producer.node).is_none() {
                open.push(producer.node);
            }
        }
    }
    retain(graph, &topology, &becomes)
}
