//! Assembly of a graph from lists of nodes and edges that are known to be valid, for passes over validated graphs.

use crate::error::Result;
use crate::graph::{CONTROL, Graph, NodeId, Output};
use crate::node::Node;

/// An edge between two nodes of the node list that [`Graph::assemble`] takes; either node may come first in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub from: NodeId,
    /// The output index at the node `from`; [`CONTROL`] for a control edge.
    pub output: u32,
    pub to: NodeId,
    pub input: u32,
}

impl Edge {
    /// Returns a data edge from an output to an input slot of `to`.
    pub fn data(from: Output, to: NodeId, input: u32) -> Edge {
        Edge { from: from.node, output: from.index, to, input }
    }

    /// Returns a control edge.
    pub fn control(from: NodeId, to: NodeId) -> Edge {
        Edge { from, output: CONTROL, to, input: CONTROL }
    }
}

impl Graph {
    /// Builds a graph in which the n-th node of the list has id n. The edges into each node must come in the order of
    /// the node's inputs, data before control. Node signatures are checked in debug builds only, because passes build
    /// from validated graphs.
    ///
    /// # Errors
    /// `InvalidArgument` if two nodes have the same name.
    ///
    /// # Panics
    /// If an edge refers to a node that is not in the list.
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
