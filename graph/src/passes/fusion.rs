//! The graph rewrite that all fusion passes share: a group of nodes is replaced by one fused node.

use super::checked;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::topology::Topology;
use rustc_hash::{FxHashMap, FxHashSet};

/// The nodes that take part in fusions, each with its role in one fusion.
pub(super) type Fusions = FxHashMap<NodeId, Fusion>;

/// The role of a node in a fusion.
pub(super) enum Fusion {
    /// The node is replaced by this fused node.
    Node(FusedNode),
    /// The node is absorbed by the fused node that replaces the node with this id; readers of an output of the absorbed
    /// node read the output with the same index of the fused node.
    PartOf(NodeId),
}

/// The node that replaces a fused group, at the position of one of the group's nodes.
pub(super) struct FusedNode {
    pub(super) node: Node,
    /// The outputs that the fused node reads, by input slot.
    pub(super) inputs: Vec<Output>,
    /// The node's control inputs.
    pub(super) control: Vec<NodeId>,
}

/// Returns the control inputs of the nodes `joined` without duplicates; control edges between nodes of `joined` are
/// left out.
pub(super) fn control_inputs_of(topology: &Topology, joined: &[NodeId]) -> Vec<NodeId> {
    let mut before = FxHashSet::default();
    let producers = joined.iter().flat_map(|id| topology.producers(*id));
    let control = producers.filter(|p| p.is_control() && !joined.contains(&p.node)).map(|p| p.node);
    control.filter(|node| before.insert(*node)).collect()
}

/// Returns the graph with each fused group replaced by its fused node.
///
/// # Errors
/// `InvalidArgument` naming a node whose fused node is missing.
pub(super) fn apply_fusions(graph: &Graph, topology: &Topology, fusions: &Fusions) -> Result<Graph> {
    let mut out = Graph::with_capacity(graph.len(), graph.num_edges()).with_settings_of(graph);
    let mut new_ids = vec![None; graph.len()];
    for (id, node) in graph.nodes() {
        let node = match fusions.get(&id) {
            Some(Fusion::PartOf(_)) => continue,
            Some(Fusion::Node(joined)) => joined.node.clone(),
            None => node.clone(),
        };
        new_ids[id.index()] = Some(out.add_unconnected(node)?);
    }
    let new_id = |id: NodeId| {
        let whole = match fusions.get(&id) {
            Some(Fusion::PartOf(whole)) => *whole,
            _ => id,
        };
        new_ids[whole.index()].ok_or_else(|| Error::invalid(format!("fusion lost '{}'", graph.node(id).name)))
    };
    for id in graph.ids() {
        let Some(to) = new_ids[id.index()] else { continue };
        if let Some(Fusion::Node(joined)) = fusions.get(&id) {
            for (slot, input) in joined.inputs.iter().enumerate() {
                out.connect(Output { node: new_id(input.node)?, index: input.index }, to, slot);
            }
            for after in &joined.control {
                out.connect_control(new_id(*after)?, to);
            }
            continue;
        }
        for producer in topology.producers(id) {
            let from = new_id(producer.node)?;
            match producer.is_control() {
                true => out.connect_control(from, to),
                false => {
                    out.connect(Output { node: from, index: producer.output }, to, producer.input as usize);
                }
            }
        }
    }
    checked(out)
}
