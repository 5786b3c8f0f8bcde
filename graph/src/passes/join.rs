//! One node in the place of several whose values only each other reads.

use super::checked;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::topology::Topology;
use rustc_hash::{FxHashMap, FxHashSet};

/// What becomes of nodes that are joined.
pub(super) type Joins = FxHashMap<NodeId, Becomes>;

pub(super) enum Becomes {
    One(Joined),
    /// Part of this one: whoever needs an output that others may see takes the same output of that.
    PartOf(NodeId),
}

/// The one node, which stands where one of them stood.
pub(super) struct Joined {
    pub(super) node: Node,
    /// What it reads, by slot.
    pub(super) inputs: Vec<Output>,
    /// What it runs after besides.
    pub(super) control: Vec<NodeId>,
}

/// What any of the nodes runs after by control, but for each other; each once.
pub(super) fn control_of(topology: &Topology, joined: &[NodeId]) -> Vec<NodeId> {
    let mut before = FxHashSet::default();
    let producers = joined.iter().flat_map(|id| topology.producers(*id));
    let control = producers.filter(|p| p.is_control() && !joined.contains(&p.node)).map(|p| p.node);
    control.filter(|node| before.insert(*node)).collect()
}

/// The graph with nodes joined.
///
/// # Errors
/// `InvalidArgument` naming a node that is part of none.
pub(super) fn join(graph: &Graph, topology: &Topology, joins: &Joins) -> Result<Graph> {
    let mut out = Graph::with_capacity(graph.len(), graph.num_edges()).with_settings_of(graph);
    let mut new_ids = vec![None; graph.len()];
    for (id, node) in graph.nodes() {
        let node = match joins.get(&id) {
            Some(Becomes::PartOf(_)) => continue,
            Some(Becomes::One(joined)) => joined.node.clone(),
            None => node.clone(),
        };
        new_ids[id.index()] = Some(out.add_unconnected(node)?);
    }
    let new_id = |id: NodeId| {
        let whole = match joins.get(&id) {
            Some(Becomes::PartOf(whole)) => *whole,
            _ => id,
        };
        new_ids[whole.index()].ok_or_else(|| Error::invalid(format!("fusion lost '{}'", graph.node(id).name)))
    };
    for id in graph.ids() {
        let Some(to) = new_ids[id.index()] else { continue };
        if let Some(Becomes::One(joined)) = joins.get(&id) {
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
