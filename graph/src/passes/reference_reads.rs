//! The times at which nodes read references: a reader of a reference sees all writes that ran before it, so fusion
//! must not delay a read.

use super::references;
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::topology::Topology;
use rustc_hash::FxHashSet;

/// The facts about the nodes of a graph that decide whether a fusion delays a read of a reference.
pub(super) struct ReferenceReads<'a> {
    topology: &'a Topology,
    /// Set for nodes that may return a reference, by the op's signature or by forwarding an input.
    references: Vec<bool>,
    /// Set for nodes that are ready when the step starts: constants, variables, and nodes that only forward constants
    /// or variables.
    is_ready_at_start: Vec<bool>,
}

impl<'a> ReferenceReads<'a> {
    /// Collects the facts about all nodes of `graph`. `order` lists every node after its producers.
    pub(super) fn new(graph: &Graph, topology: &'a Topology, order: &[NodeId]) -> Result<ReferenceReads<'a>> {
        let references = references(graph, topology, order)?;
        let mut is_ready_at_start = vec![false; graph.len()];
        for id in order {
            let (node, producers) = (graph.node(*id), topology.producers(*id));
            is_ready_at_start[id.index()] = match producers {
                [] => node.op.name() == "Const" || references[id.index()],
                _ => {
                    let passes_on = node.op.def.traits.passes_reference;
                    passes_on && producers.iter().all(|p| is_ready_at_start[p.node.index()])
                }
            };
        }
        Ok(ReferenceReads { topology, references, is_ready_at_start })
    }

    /// Returns whether the node may return a reference.
    pub(super) fn may_be_reference(&self, id: NodeId) -> bool {
        self.references[id.index()]
    }

    /// Returns whether the node `id` may read a reference and would read it later when fused with `others`, because one
    /// of `others` waits for a node that the node `id` does not wait for.
    pub(super) fn would_read_later(&self, id: NodeId, others: &[NodeId]) -> bool {
        let producers = self.topology.producers(id);
        if !producers.iter().any(|p| self.references[p.node.index()]) {
            return false;
        }
        // `known` collects nodes that the node `id` waits for: its producers and, for producers that are in `others`,
        // their producers in turn.
        let mut known = FxHashSet::from_iter([id]);
        let mut open = vec![id];
        while let Some(member) = open.pop() {
            let from = self.topology.producers(member).iter().map(|producer| producer.node);
            open.extend(from.filter(|from| known.insert(*from) && others.contains(from)));
        }
        let is_known = |from: NodeId| {
            known.contains(&from) || others.contains(&from) || self.is_ready_at_start[from.index()]
        };
        !others.iter().flat_map(|other| self.topology.producers(*other)).all(|p| is_known(p.node))
    }
}
