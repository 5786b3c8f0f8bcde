//! What a node waits for, where it matters when it reads: of a reference it sees what was written until then.

use super::references;
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::topology::Topology;
use rustc_hash::FxHashSet;

/// What each node of a graph waits for before it reads references.
pub(super) struct Waits<'a> {
    topology: &'a Topology,
    /// Who may give a reference, by his own signature or because he passes on what he takes.
    references: Vec<bool>,
    /// Who waits for nothing: constants, variables, and reads of those.
    at_start: Vec<bool>,
}

impl<'a> Waits<'a> {
    /// Of a graph whose nodes are in `order` after their producers.
    pub(super) fn new(graph: &Graph, topology: &'a Topology, order: &[NodeId]) -> Result<Waits<'a>> {
        let references = references(graph, topology, order)?;
        let mut at_start = vec![false; graph.len()];
        for id in order {
            let (node, producers) = (graph.node(*id), topology.producers(*id));
            at_start[id.index()] = match producers {
                [] => node.op.name() == "Const" || references[id.index()],
                _ => {
                    let passes_on = node.op.def.traits.passes_reference;
                    passes_on && producers.iter().all(|p| at_start[p.node.index()])
                }
            };
        }
        Ok(Waits { topology, references, at_start })
    }

    /// Whether the node may give a reference.
    pub(super) fn may_be_reference(&self, id: NodeId) -> bool {
        self.references[id.index()]
    }

    /// Whether the node may read a reference, and later than by itself if it were one with these others, who wait for
    /// something that it does not wait for.
    pub(super) fn would_read_later(&self, id: NodeId, others: &[NodeId]) -> bool {
        let producers = self.topology.producers(id);
        if !producers.iter().any(|p| self.references[p.node.index()]) {
            return false;
        }
        // What those wait for that it reads, it waits for.
        let mut known = FxHashSet::from_iter([id]);
        let mut open = vec![id];
        while let Some(member) = open.pop() {
            let from = self.topology.producers(member).iter().map(|producer| producer.node);
            open.extend(from.filter(|from| known.insert(*from) && others.contains(from)));
        }
        let is_known =
            |from: NodeId| known.contains(&from) || others.contains(&from) || self.at_start[from.index()];
        !others.iter().flat_map(|other| self.topology.producers(*other)).all(|p| is_known(p.node))
    }
}
