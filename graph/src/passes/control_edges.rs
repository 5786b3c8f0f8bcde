//! Removal of redundant control edges, and of nodes whose only effect is to order other nodes.

use super::ancestors::{AncestorForest, needs_all_inputs};
use super::{checked, colocation_anchors, references, replaces_lowered_node};
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::Role;
use crate::topology::Topology;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

/// Returns the graph with fewer control edges, in which each node still runs after the same nodes and is alive in the
/// same cases.
///
/// The pass removes an edge that is a duplicate, that starts at a constant, or whose source runs before another input
/// of the same reader. The pass removes a node that does nothing, or that forwards a value without readers, if its
/// control edges can be replaced by as many or fewer edges on one device; the readers of the node then wait for the
/// node's inputs. Nodes of `keep` stay, and so do nodes that other nodes are colocated with.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is not a loop.
pub fn remove_redundant_control_edges(graph: &Graph, keep: &[NodeId]) -> Result<Graph> {
    let topology = Topology::new(graph);
    let order = topology.order(graph)?;
    let mut fixed: FxHashSet<NodeId> = keep.iter().copied().collect();
    fixed.extend(colocation_anchors(graph));
    let references = references(graph, &topology, &order)?;
    let control = graph.ids().map(|id| control(&topology, id)).collect();
    let mut edges = ControlEdges {
        graph,
        topology: &topology,
        fixed,
        references,
        control,
        stand_ins: vec![None; graph.len()],
    };
    for &id in &order {
        edges.bypass(id);
    }
    let ancestors = AncestorForest::new(graph, &topology, &order)?;
    for &id in &order {
        edges.reduce(id, &ancestors);
    }
    edges.rebuild()
}

/// Returns the control inputs of a node.
fn control(topology: &Topology, id: NodeId) -> Vec<NodeId> {
    topology.producers(id).iter().filter(|p| p.is_control()).map(|p| p.node).collect()
}

/// The control edges of a graph while the pass changes them.
struct ControlEdges<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    fixed: FxHashSet<NodeId>,
    /// Set for nodes that may return a reference.
    references: Vec<bool>,
    /// The control inputs of each node in the resulting graph.
    control: Vec<Vec<NodeId>>,
    /// For each node that is replaced as a control input of its readers, the replacement; `None` for all other nodes.
    stand_ins: Vec<Option<StandIn>>,
}

/// The nodes that readers of a removed node wait for in its place.
#[derive(Clone)]
enum StandIn {
    /// No node, because the removed node has no inputs to wait for.
    Nothing,
    /// One node, on the same device as the removed node.
    One(NodeId),
    /// All inputs of the removed node, which become control inputs of its only reader.
    All(Vec<NodeId>),
}

impl ControlEdges<'_> {
    /// Replaces the node's control inputs that are removed by their stand-ins, then computes the stand-in of the node
    /// itself. All producers of the node must have been processed, except those at the back edge of a loop.
    fn bypass(&mut self, id: NodeId) {
        let mut before = Vec::new();
        for from in std::mem::take(&mut self.control[id.index()]) {
            match &mut self.stand_ins[from.index()] {
                None => before.push(from),
                Some(StandIn::Nothing) => {}
                Some(StandIn::One(stand)) => before.push(*stand),
                Some(StandIn::All(all)) => {
                    let mut all = std::mem::take(all);
                    // The shorter list is appended to the longer one, so that a chain of nodes does not copy its whole
                    // list at every node.
                    if all.len() > before.len() {
                        std::mem::swap(&mut all, &mut before);
                    }
                    before.append(&mut all);
                }
            }
        }
        self.stand_ins[id.index()] = self.stand_in_of(id, &mut before);
        self.control[id.index()] = before;
    }

    fn stand_in_of(&self, id: NodeId, before: &mut Vec<NodeId>) -> Option<StandIn> {
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
        // A reader of a Switch is alive only if the output of the Switch that it reads is alive, and the time at which
        // a node reads a reference can be observed; neither kind of node can be removed.
        let shows = |id: NodeId| self.graph.node(id).op.role() == Role::Switch || self.references[id.index()];
        if values().any(shows) {
            return None;
        }
        let stand = |id: NodeId| match &self.stand_ins[id.index()] {
            None | Some(StandIn::All(_)) => Some(id),
            Some(StandIn::One(stand)) => Some(*stand),
            Some(StandIn::Nothing) => None,
        };
        let sources: SmallVec<[NodeId; 2]> = values().filter_map(stand).collect();
        let device = |id: NodeId| &self.graph.node(id).device;
        match (sources.as_slice(), before.as_slice()) {
            ([], []) => Some(StandIn::Nothing),
            ([one], []) | ([], [one]) if device(*one) == device(id) => Some(StandIn::One(*one)),
            _ => {
                let (reader, others) = (readers.next()?, readers.len());
                let is_only = others == 0 && reader.is_control() && device(reader.node) == device(id);
                if !is_only {
                    return None;
                }
                let mut all = std::mem::take(before);
                all.extend(sources);
                Some(StandIn::All(all))
            }
        }
    }

    /// Removes control edges into the node that are duplicates, or whose source is a data input of the node or runs
    /// before another input.
    fn reduce(&mut self, id: NodeId, ancestors: &AncestorForest) {
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
            before.iter().copied().chain(values()).map(|from| ancestors.position(from)).collect();
        places.sort_unstable();
        before.retain(|from| !given.contains(from) && !ancestors.is_before_any(*from, &places));
    }

    fn is_removed(&self, id: NodeId) -> bool {
        self.stand_ins[id.index()].is_some()
            && !self.topology.consumers(id).is_empty()
            && self.topology.consumers(id).iter().all(|reader| reader.is_control())
    }

    fn rebuild(self) -> Result<Graph> {
        let graph = self.graph;
        let mut out = Graph::with_capacity(graph.len(), graph.num_edges()).with_settings_of(graph);
        let mut new_ids = vec![None; graph.len()];
        for (id, node) in graph.nodes().filter(|(id, _)| !self.is_removed(*id)) {
            new_ids[id.index()] = Some(out.add_unconnected(node.clone())?);
        }
        let new_id = |id: NodeId| {
            new_ids[id.index()].ok_or_else(|| {
                Error::invalid(format!(
                    "node '{}' is missing after the removal of control edges",
                    graph.node(id).name
                ))
            })
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

/// Returns whether a node does only trivial work and cannot fail, so that its only effect may be to order other nodes.
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
    OPS.contains(&node.op.name()) && !replaces_lowered_node(node)
}
