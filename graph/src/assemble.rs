//! Graphs from nodes and edges that are known to fit together: what passes build from a graph that was checked.

use crate::error::Result;
use crate::graph::{CONTROL, Graph, NodeId, Output};
use crate::node::Node;

/// An edge between nodes of a list, which may stand in it in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub from: NodeId,
    /// [`CONTROL`], as `input` is, if the edge only orders.
    pub output: u32,
    pub to: NodeId,
    pub input: u32,
}

impl Edge {
    pub fn data(from: Output, to: NodeId, input: u32) -> Edge {
        Edge { from: from.node, output: from.index, to, input }
    }

    pub fn control(from: NodeId, to: NodeId) -> Edge {
        Edge { from, output: CONTROL, to, input: CONTROL }
    }
}

impl Graph {
    /// A graph of these nodes, of which the n-th gets id n, and these edges, of which those into one node come
    /// in the order of its inputs, data before control. The nodes' signatures are checked in debug builds only:
    /// this is for passes over a graph that was checked.
    ///
    /// # Errors
    /// `InvalidArgument` if two nodes have one name.
    ///
    /// # Panics
    /// If an edge names a node that is not there.
    pub fn assemble(nodes: Vec<Node>, edges: impl ExactSizeIterator<Item = Edge>) -> Result<Graph> {
        let mut graph = Graph::with_capacity(nodes.len(), edges.len());
        for node in nodes {
            graph.add_unconnected(node)?;
        }
        for edge in edges {
            if edge.output == CONTROL {
                graph.connect_control(edge.from, edge.to);
            } else {
                graph.connect(Output { node: edge.from, index: edge.output }, edge.to, edge.input as usize);
            }
        }
        if cfg!(debug_assertions) {
            for id in graph.ids() {
                graph.check_inputs(id)?;
            }
        }
        Ok(graph)
    }
}
