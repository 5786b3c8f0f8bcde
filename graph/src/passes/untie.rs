//! Control edges that order nothing go, and so do nodes that do nothing but order.

use super::lineage::{Lineage, needs_all_inputs};
use super::{checked, colocation_anchors, references, stands_for_lowered};
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::Role;
use crate::topology::Topology;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

/// The graph with fewer control edges, in which everything still runs after all that it ran after, and lives where it
/// lived.
///
/// No edge stays that comes twice, that leads from a constant, or whose source runs before something else that its
/// reader needs. A node that does nothing, or that only passes on what nobody reads, goes where that takes one edge
/// or gives one, on one device: its readers wait for what it waited for. Nodes of `keep` stay, as do those that others
/// are colocated with.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is no loop.
pub fn untie(graph: &Graph, keep: &[NodeId]) -> Result<Graph> {
    let topology = Topology::new(graph);
    let order = topology.order(graph)?;
    let mut fixed: FxHashSet<NodeId> = keep.iter().copied().collect();
    fixed.extend(colocation_anchors(graph));
    let references = references(graph, &topology, &order)?;
    let control = graph.ids().map(|id| control(&topology, id)).collect();
    let mut knots =
        Knots { graph, topology: &topology, fixed, references, control, loose: vec![None; graph.len()] };
    for &id in &order {
        knots.pass_by(id);
    }
    let lineage = Lineage::new(graph, &topology, &order)?;
    for &id in &order {
        knots.reduce(id, &lineage);
    }
    knots.rebuild()
}

fn control(topology: &Topology, id: NodeId) -> Vec<NodeId> {
    topology.producers(id).iter().filter(|p| p.is_control()).map(|p| p.node).collect()
}

struct Knots<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    fixed: FxHashSet<NodeId>,
    /// Whether each node may give a reference.
    references: Vec<bool>,
    /// What each node waits for, from now on.
    control: Vec<Vec<NodeId>>,
    /// What stands for each node where others wait for it, if not the node itself.
    loose: Vec<Option<Stand>>,
}

#[derive(Clone)]
enum Stand {
    /// Nothing need be waited for.
    Nothing,
    One(NodeId),
    /// The one that waits for it takes over what it waited for.
    All(Vec<NodeId>),
}

impl Knots<'_> {
    /// Lets the node wait for what stands for those that it waited for, and finds out what stands for it. Those have
    /// been visited, but for what comes around a loop.
    fn pass_by(&mut self, id: NodeId) {
        let mut before = Vec::new();
        for from in std::mem::take(&mut self.control[id.index()]) {
            match &mut self.loose[from.index()] {
                None => before.push(from),
                Some(Stand::Nothing) => {}
                Some(Stand::One(stand)) => before.push(*stand),
                Some(Stand::All(all)) => {
                    let mut all = std::mem::take(all);
                    // The shorter list moves, so that what goes down a chain of nodes moves seldom.
                    if all.len() > before.len() {
                        std::mem::swap(&mut all, &mut before);
                    }
                    before.append(&mut all);
                }
            }
        }
        self.loose[id.index()] = self.stand_for(id, &mut before);
        self.control[id.index()] = before;
    }

    fn stand_for(&self, id: NodeId, before: &mut Vec<NodeId>) -> Option<Stand> {
        let node = self.graph.node(id);
        if self.fixed.contains(&id) || !only_orders(node) {
            return None;
        }
        let mut readers = self.topology.consumers(id).iter();
        let takes_values = !node.op.inputs.is_empty();
        if takes_values && !readers.clone().all(|reader| reader.is_control()) {
            return None;
        }
        let values = || self.topology.producers(id).iter().filter(|p| !p.is_control()).map(|p| p.node);
        // Which way a value took shows, and when a reference is read.
        let shows = |id: NodeId| self.graph.node(id).op.role() == Role::Switch || self.references[id.index()];
        if values().any(shows) {
            return None;
        }
        let stand = |id: NodeId| match &self.loose[id.index()] {
            None | Some(Stand::All(_)) => Some(id),
            Some(Stand::One(stand)) => Some(*stand),
            Some(Stand::Nothing) => None,
        };
        let sources: SmallVec<[NodeId; 2]> = values().filter_map(stand).collect();
        let device = |id: NodeId| &self.graph.node(id).device;
        match (sources.as_slice(), before.as_slice()) {
            ([], []) => Some(Stand::Nothing),
            ([one], []) | ([], [one]) if device(*one) == device(id) => Some(Stand::One(*one)),
            _ => {
                let (reader, others) = (readers.next()?, readers.len());
                let is_only = others == 0 && reader.is_control() && device(reader.node) == device(id);
                if !is_only {
                    return None;
                }
                let mut all = std::mem::take(before);
                all.extend(sources);
                Some(Stand::All(all))
            }
        }
    }

    /// Takes away edges that follow from others.
    fn reduce(&mut self, id: NodeId, lineage: &Lineage) {
        let before = &mut self.control[id.index()];
        if before.is_empty() {
            return;
        }
        let values = || self.topology.producers(id).iter().filter(|p| !p.is_control()).map(|p| p.node);
        let mut seen = FxHashSet::default();
        before.retain(|from| seen.insert(*from));
        let reads_reference = values().any(|from| self.references[from.index()]);
        if reads_reference || !needs_all_inputs(self.graph.node(id).op.role()) {
            return;
        }
        let given: FxHashSet<NodeId> = values().collect();
        let mut places: Vec<u32> =
            before.iter().copied().chain(values()).map(|from| lineage.place(from)).collect();
        places.sort_unstable();
        before.retain(|from| !given.contains(from) && !lineage.is_before_any(*from, &places));
    }

    fn is_gone(&self, id: NodeId) -> bool {
        self.loose[id.index()].is_some()
            && !self.topology.consumers(id).is_empty()
            && self.topology.consumers(id).iter().all(|reader| reader.is_control())
    }

    fn rebuild(self) -> Result<Graph> {
        let graph = self.graph;
        let mut out = Graph::with_capacity(graph.len(), graph.num_edges()).with_settings_of(graph);
        let mut new_ids = vec![None; graph.len()];
        for (id, node) in graph.nodes().filter(|(id, _)| !self.is_gone(*id)) {
            new_ids[id.index()] = Some(out.add_unconnected(node.clone())?);
        }
        let new_id = |id: NodeId| {
            new_ids[id.index()]
                .ok_or_else(|| Error::invalid(format!("untying lost '{}'", graph.node(id).name)))
        };
        for id in graph.ids() {
            let Some(to) = new_ids[id.index()] else { continue };
            for producer in self.topology.producers(id).iter().filter(|p| !p.is_control()) {
                let from = Output { node: new_id(producer.node)?, index: producer.output };
                out.connect(from, to, producer.input as usize);
            }
            for from in &self.control[id.index()] {
                out.connect_control(new_id(*from)?, to);
            }
        }
        checked(out)
    }
}

/// Whether a node does no work worth waiting for, and cannot fail.
fn only_orders(node: &Node) -> bool {
    const OPS: &[&str] = &[
        "Const",
        "Identity",
        "IdentityN",
        "NoOp",
        "PreventGradient",
        "Rank",
        "Shape",
        "ShapeN",
        "Size",
        "Snapshot",
        "StopGradient",
    ];
    OPS.contains(&node.op.name()) && !stands_for_lowered(node)
}
