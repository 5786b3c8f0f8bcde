//! An index of nodes that certainly run before other nodes. It stores one path of ancestors per node, so that a query
//! needs no walk over the graph.

use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::Role;
use crate::topology::Topology;

/// A forest in which the parent of each node is its producer with the longest path of ancestors. Each ancestor of a
/// node in the forest has run before the node, is alive whenever the node is alive, and belongs to the same loop frame
/// and iteration. The index is incomplete: nodes that are not ancestors of a node in the forest may have run before it
/// as well.
#[derive(Debug)]
pub(super) struct AncestorForest {
    /// Index of each node in a pre-order walk of the forest.
    first: Vec<u32>,
    /// Index of each node's last descendant in the pre-order walk of the forest.
    last: Vec<u32>,
}

impl AncestorForest {
    /// Builds the forest. `order` lists every node after its producers.
    pub(super) fn new(graph: &Graph, topology: &Topology, order: &[NodeId]) -> Result<AncestorForest> {
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
        // Size of each subtree including its root. A node's index in the walk is its parent's index plus 1 and the
        // sizes of the subtrees of its elder siblings.
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
        Ok(AncestorForest { first, last })
    }

    /// Returns the node's index in the pre-order walk of the forest, for [`AncestorForest::is_before_any`].
    pub(super) fn position(&self, id: NodeId) -> u32 {
        self.first[id.index()]
    }

    /// Returns whether `one` is an ancestor of any node whose pre-order index is in the sorted list `places`.
    pub(super) fn is_before_any(&self, one: NodeId, places: &[u32]) -> bool {
        let next = places.partition_point(|place| *place <= self.first[one.index()]);
        places.get(next).is_some_and(|place| *place <= self.last[one.index()])
    }

    /// Returns whether `one` is an ancestor of `other` in the forest. `false` means that the order of the two is
    /// unknown.
    pub(super) fn is_before(&self, one: NodeId, other: NodeId) -> bool {
        let place = self.first[other.index()];
        self.first[one.index()] < place && place <= self.last[one.index()]
    }
}

/// Returns whether a node of this role is alive only if all its producers are alive, in the same loop frame and
/// iteration.
pub(super) fn needs_all_inputs(role: Role) -> bool {
    matches!(role, Role::Compute | Role::Switch | Role::LoopCond | Role::Send)
}
