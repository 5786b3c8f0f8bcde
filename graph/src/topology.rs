//! A dense snapshot of a graph's edges: a few arrays instead of linked lists, for passes that visit all edges.

use crate::error::{Error, Result};
use crate::graph::{CONTROL, Consumer, Graph, NodeId, Output};
use crate::ops::Role;

/// The edges of a graph at one time, indexed by destination and by source.
#[derive(Clone, Debug)]
pub struct Topology {
    in_start: Vec<u32>,
    in_edges: Vec<Producer>,
    out_start: Vec<u32>,
    out_edges: Vec<Consumer>,
}

/// An incoming edge of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    pub node: NodeId,
    /// The index of the source node's output; [`CONTROL`] for a control edge.
    pub output: u32,
    pub input: u32,
}

impl Producer {
    /// Returns whether the edge is a control edge.
    pub fn is_control(&self) -> bool {
        self.output == CONTROL
    }

    /// Returns the output that the edge starts at.
    pub fn source(&self) -> Output {
        Output { node: self.node, index: self.output }
    }
}

impl Topology {
    /// Copies the edges of a graph.
    pub fn new(graph: &Graph) -> Topology {
        let edges = graph.raw_edges();
        let (nodes, count) = (graph.len(), edges.len());
        let mut in_start = vec![0u32; nodes + 1];
        let mut out_start = vec![0u32; nodes + 1];
        for (from, to, _) in graph.raw_edges() {
            in_start[to.index() + 1] += 1;
            out_start[from.index() + 1] += 1;
        }
        for i in 0..nodes {
            in_start[i + 1] += in_start[i];
            out_start[i + 1] += out_start[i];
        }
        let nothing = NodeId::new(0);
        let mut in_edges = vec![Producer { node: nothing, output: 0, input: 0 }; count];
        let mut out_edges = vec![Consumer { node: nothing, output: 0, input: 0 }; count];
        let (mut in_next, mut out_next) = (in_start.clone(), out_start.clone());
        for (from, to, ports) in edges {
            let slot = &mut in_next[to.index()];
            in_edges[*slot as usize] = Producer { node: from, output: ports.output, input: ports.input };
            *slot += 1;
            let slot = &mut out_next[from.index()];
            out_edges[*slot as usize] = Consumer { node: to, output: ports.output, input: ports.input };
            *slot += 1;
        }
        for i in 0..nodes {
            let edges = &mut in_edges[in_start[i] as usize..in_start[i + 1] as usize];
            // Control edges have the largest input number, so the stable sort puts them last, in the order of their
            // addition.
            if !edges.is_sorted_by_key(|e| e.input) {
                edges.sort_by_key(|e| e.input);
            }
        }
        Topology { in_start, in_edges, out_start, out_edges }
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.in_start.len() - 1
    }

    /// Returns whether the graph has no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of edges, control edges included.
    pub fn num_edges(&self) -> usize {
        self.in_edges.len()
    }

    /// Returns the edges into a node: data edges in slot order, then control edges.
    pub fn producers(&self, id: NodeId) -> &[Producer] {
        &self.in_edges[self.in_start[id.index()] as usize..self.in_start[id.index() + 1] as usize]
    }

    /// Returns the edges out of a node, in the order of their addition.
    pub fn consumers(&self, id: NodeId) -> &[Consumer] {
        &self.out_edges[self.out_start[id.index()] as usize..self.out_start[id.index() + 1] as usize]
    }

    /// Returns the index of the node's first incoming edge among all incoming edges, which gives each edge a dense
    /// number.
    pub fn first_edge(&self, id: NodeId) -> usize {
        self.in_start[id.index()] as usize
    }

    /// Returns all nodes in topological order, ties in node order. Edges out of NextIteration are ignored, because
    /// they close loops.
    ///
    /// # Errors
    /// `InvalidArgument` naming a node of a cycle.
    pub fn order(&self, graph: &Graph) -> Result<Vec<NodeId>> {
        let closes_loop = |id: NodeId| graph.node(id).op.role() == Role::NextIteration;
        let mut pending: Vec<u32> = graph
            .ids()
            .map(|id| self.producers(id).iter().filter(|p| !closes_loop(p.node)).count() as u32)
            .collect();
        let mut order: Vec<NodeId> = graph.ids().filter(|id| pending[id.index()] == 0).collect();
        let mut next = 0;
        while let Some(&id) = order.get(next) {
            next += 1;
            if closes_loop(id) {
                continue;
            }
            for consumer in self.consumers(id) {
                let count = &mut pending[consumer.node.index()];
                *count -= 1;
                if *count == 0 {
                    order.push(consumer.node);
                }
            }
        }
        match graph.ids().find(|id| pending[id.index()] != 0) {
            None => Ok(order),
            Some(id) => Err(Error::Cycle { node: graph.node(id).name.to_string() }),
        }
    }
}
