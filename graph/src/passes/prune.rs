//! Dead-code elimination: removal of the nodes on which no fetched or otherwise required node depends.

use super::retain;
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::topology::Topology;

/// Returns the graph of the nodes `wanted` and their ancestors over data and control edges, in the order of the
/// original graph.
pub fn prune(graph: &Graph, wanted: &[NodeId]) -> Result<Graph> {
    let topology = Topology::new(graph);
    let is_needed = needed(&topology, graph.len(), wanted);
    let becomes: Vec<Option<NodeId>> = graph.ids().map(|id| is_needed[id.index()].then_some(id)).collect();
    retain(graph, &topology, &becomes)
}

/// Returns for each of a graph's `len` nodes whether it is one of `wanted` or an ancestor of one.
pub(super) fn needed(topology: &Topology, len: usize, wanted: &[NodeId]) -> Vec<bool> {
    let mut is_needed = vec![false; len];
    let mut open = wanted.to_vec();
    while let Some(id) = open.pop() {
        if !std::mem::replace(&mut is_needed[id.index()], true) {
            open.extend(topology.producers(id).iter().map(|producer| producer.node));
        }
    }
    is_needed
}
