//! Dead-code elimination: removal of the nodes on which no fetched or otherwise required node depends.

use super::retain;
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::topology::Topology;

/// Returns the graph of the nodes `wanted` and their ancestors over data and control edges, in the order of the
/// original graph.
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
