//! What surely has run before what: one path back from each node, so that a question takes no walk.

use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::Role;
use crate::topology::Topology;

/// A forest of the nodes in which each hangs from the producer that comes last: the one with the longest way behind
/// it. Whatever a node hangs from, near or far, has run before it, lives wherever it lives, and is in its frame and
/// turn. Others may have run before it as well.
#[derive(Debug)]
pub(super) struct Lineage {
    /// Where each node stands in a walk of the forest, parents before children.
    first: Vec<u32>,
    /// Where the last of those that hang from it stands.
    last: Vec<u32>,
}

impl Lineage {
    /// `order` has every node after its producers.
    pub(super) fn new(graph: &Graph, topology: &Topology, order: &[NodeId]) -> Result<Lineage> {
        let mut length = vec![0u32; graph.len()];
        let mut parent: Vec<Option<NodeId>> = vec![None; graph.len()];
        for &id in order.iter().filter(|id| needs_all_inputs(graph.node(**id).op.role())) {
            for producer in topology.producers(id) {
                let way = length[producer.node.index()] + 1;
                if way > length[id.index()] {
                    length[id.index()] = way;
                    parent[id.index()] = Some(producer.node);
                }
            }
        }
        // How many hang from each, itself included; then each one's place, behind its parent and elder siblings.
        let mut size = vec![1u32; graph.len()];
        for &id in order.iter().rev() {
            if let Some(parent) = parent[id.index()] {
                size[parent.index()] += size[id.index()];
            }
        }
        let mut first = vec![0u32; graph.len()];
        let mut next_child = vec![0u32; graph.len()];
        let mut next_root = 0;
        for &id in order {
            let next = match parent[id.index()] {
                Some(parent) => &mut next_child[parent.index()],
                None => &mut next_root,
            };
            first[id.index()] = *next;
            *next += size[id.index()];
            next_child[id.index()] = first[id.index()] + 1;
        }
        let last = first.iter().zip(&size).map(|(first, size)| first + size - 1).collect();
        Ok(Lineage { first, last })
    }

    /// Where a node stands, for [`Lineage::is_before_any`].
    pub(super) fn place(&self, id: NodeId) -> u32 {
        self.first[id.index()]
    }

    /// Whether a node is before one of those at these places, which are sorted.
    pub(super) fn is_before_any(&self, one: NodeId, places: &[u32]) -> bool {
        let next = places.partition_point(|place| *place <= self.first[one.index()]);
        places.get(next).is_some_and(|place| *place <= self.last[one.index()])
    }

    /// Whether the one is among those that the other hangs from. `false` says nothing.
    pub(super) fn is_before(&self, one: NodeId, other: NodeId) -> bool {
        let place = self.first[other.index()];
        self.first[one.index()] < place && place <= self.last[one.index()]
    }
}

/// Whether a node of this role lives only if all that it waits for does, in the same frame and turn.
pub(super) fn needs_all_inputs(role: Role) -> bool {
    matches!(role, Role::Compute | Role::Switch | Role::LoopCond | Role::Send)
}
