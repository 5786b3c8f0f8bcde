//! Removal of work whose results have no reader. An example is the gradient with respect to a fed input, which
//! TensorFlow clients wait for by a control edge without reading it.

use super::{checked, is_placeholder};
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::{self, Role};
use crate::topology::Topology;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

/// Removes stateless nodes whose values are read neither by a node that stays nor through a node of `keep`.
///
/// A node that ran after a removed node runs after that node's inputs instead: by an edge if there is one input,
/// otherwise through a `NoOp` that has the removed node's name. Nodes that take or return references stay, and so do
/// nodes that read a Switch or another control-flow op.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is not a loop.
pub fn remove_unread_nodes(graph: &Graph, keep: &[NodeId]) -> Result<Graph> {
    let topology = Topology::new(graph);
    let order = topology.order(graph)?;
    let unread_nodes = UnreadNodes::new(graph, &topology, &order, keep)?;
    match unread_nodes.count {
        0 => Ok(graph.clone()),
        _ => unread_nodes.rebuild(graph, &topology),
    }
}

/// The number of edges that may be visited, per edge of the graph, in the search for control inputs that run before
/// other control inputs of the same node.
const VISITS_PER_EDGE: usize = 4;

type ControlInputs = SmallVec<[NodeId; 4]>;

/// The result of the search for nodes whose outputs have no reader.
struct UnreadNodes {
    is_unread: Vec<bool>,
    count: usize,
    /// For each unread node, the nodes that it runs after, without nodes that run before another node in the list.
    waits: Vec<ControlInputs>,
    /// Set for unread nodes that need no `NoOp`, because their readers can wait for the node's inputs directly.
    is_bypassed: Vec<bool>,
}

impl UnreadNodes {
    fn new(graph: &Graph, topology: &Topology, order: &[NodeId], keep: &[NodeId]) -> Result<UnreadNodes> {
        let keep: FxHashSet<NodeId> = keep.iter().copied().collect();
        let mut unread_nodes = UnreadNodes {
            is_unread: vec![false; graph.len()],
            count: 0,
            waits: vec![ControlInputs::new(); graph.len()],
            is_bypassed: vec![false; graph.len()],
        };
        for &id in order.iter().rev() {
            let consumers = topology.consumers(id);
            let is_unread = !consumers.is_empty()
                && consumers.iter().all(|c| c.is_control() || unread_nodes.is_unread[c.node.index()])
                && !keep.contains(&id)
                && is_without_effect(graph, topology, id)?;
            unread_nodes.is_unread[id.index()] = is_unread;
            unread_nodes.count += usize::from(is_unread);
        }
        if unread_nodes.count > 0 {
            unread_nodes.find_control_inputs(graph, topology, order);
        }
        Ok(unread_nodes)
    }

    fn find_control_inputs(&mut self, graph: &Graph, topology: &Topology, order: &[NodeId]) {
        let mut ancestry = Ancestry::new(graph, topology, order);
        for &id in order.iter().filter(|id| self.is_unread[id.index()]) {
            let mut waits = ControlInputs::new();
            for producer in topology.producers(id) {
                let from = producer.node;
                let instead = if self.is_bypassed[from.index()] {
                    self.waits[from.index()].as_slice()
                } else {
                    &[from]
                };
                for &from in instead {
                    if !waits.contains(&from) && !is_ready_at_start(graph, topology, from) {
                        waits.push(from);
                    }
                }
            }
            let implied = |&from: &NodeId| {
                waits.iter().any(|&other| other != from && ancestry.comes_after(other, from))
            };
            let implied: ControlInputs = waits.iter().copied().filter(implied).collect();
            waits.retain(|from| !implied.contains(from));
            // A `NoOp` is needed for several inputs, and also for one input on another device with several readers,
            // because the `NoOp` then replaces several edges between devices by one edge.
            let here = |from: &NodeId| graph.node(*from).device == graph.node(id).device;
            self.is_bypassed[id.index()] =
                waits.len() <= 1 && (waits.iter().all(here) || topology.consumers(id).len() == 1);
            self.waits[id.index()] = waits;
        }
    }

    fn rebuild(&self, graph: &Graph, topology: &Topology) -> Result<Graph> {
        let no_op = ops::lookup("NoOp").ok_or_else(|| Error::unimplemented("the pass needs the op NoOp"))?;
        let mut out = Graph::with_capacity(graph.len(), graph.num_edges()).with_settings_of(graph);
        let mut new_ids = vec![None; graph.len()];
        for (id, node) in graph.nodes().filter(|(id, _)| !self.is_bypassed[id.index()]) {
            let node = match self.is_unread[id.index()] {
                true => Node { device: node.device.clone(), ..Node::new(node.name.clone(), no_op) },
                false => node.clone(),
            };
            new_ids[id.index()] = Some(out.add_unconnected(node)?);
        }
        let mut after = ControlInputs::new();
        for id in graph.ids() {
            let Some(to) = new_ids[id.index()] else { continue };
            after.clear();
            if self.is_unread[id.index()] {
                after.extend_from_slice(&self.waits[id.index()]);
            } else {
                for producer in topology.producers(id) {
                    match new_ids[producer.node.index()] {
                        Some(node) if !producer.is_control() => {
                            out.connect(Output { node, index: producer.output }, to, producer.input as usize);
                        }
                        Some(_) => after.push(producer.node),
                        None => after.extend(self.waits[producer.node.index()].iter().copied()),
                    }
                }
            }
            let mut known = FxHashSet::default();
            for from in after.iter().filter(|from| known.insert(**from)) {
                if let Some(from) = new_ids[from.index()] {
                    out.connect_control(from, to);
                }
            }
        }
        checked(out)
    }
}

/// Returns whether the node has no effect except its outputs, and is alive whenever its producers are alive.
fn is_without_effect(graph: &Graph, topology: &Topology, id: NodeId) -> Result<bool> {
    let node = graph.node(id);
    if node.op.role() != Role::Compute || node.op.is_stateful() || is_placeholder(node.op) {
        return Ok(false);
    }
    let (inputs, outputs) = (node.input_types()?, node.output_types()?);
    // The purpose of CheckNumerics is to fail, which is an effect.
    let checks = node.op.name() == "CheckNumerics";
    let takes_references = inputs.iter().chain(&outputs).any(|port| port.is_ref);
    let decides = |id: NodeId| !matches!(graph.node(id).op.role(), Role::Compute | Role::Recv);
    let is_decided_over = topology.producers(id).iter().any(|p| !p.is_control() && decides(p.node));
    Ok(!outputs.is_empty() && !checks && !takes_references && !is_decided_over)
}

/// Returns whether the node is a constant without inputs, which is ready when the step starts.
fn is_ready_at_start(graph: &Graph, topology: &Topology, id: NodeId) -> bool {
    topology.producers(id).is_empty() && graph.node(id).op.name() == "Const"
}

/// A search for whether one node runs after another, within a limit on the number of visited edges.
struct Ancestry<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    position: Vec<u32>,
    visited_in: Vec<u32>,
    round: u32,
    left: usize,
}

impl<'a> Ancestry<'a> {
    fn new(graph: &'a Graph, topology: &'a Topology, order: &[NodeId]) -> Ancestry<'a> {
        let mut position = vec![0; topology.len()];
        order.iter().zip(0..).for_each(|(id, at)| position[id.index()] = at);
        let left = VISITS_PER_EDGE.saturating_mul(topology.num_edges());
        Ancestry { graph, topology, position, visited_in: vec![0; topology.len()], round: 0, left }
    }

    /// Returns whether `late` certainly runs after `early`, and certainly is dead if `early` is dead.
    fn comes_after(&mut self, late: NodeId, early: NodeId) -> bool {
        self.round += 1;
        let mut open = vec![late];
        while let Some(id) = open.pop() {
            // Merge and ControlTrigger run even if one of their inputs is dead.
            if matches!(self.graph.node(id).op.role(), Role::Merge | Role::ControlTrigger) {
                continue;
            }
            for producer in self.topology.producers(id) {
                let from = producer.node;
                if from == early {
                    return true;
                }
                let Some(left) = self.left.checked_sub(1) else { return false };
                self.left = left;
                // The search follows only producers between `early` and the node in topological order, which excludes
                // back edges of loops.
                let is_between = (self.position[early.index()]..self.position[id.index()])
                    .contains(&self.position[from.index()]);
                if is_between && self.visited_in[from.index()] != self.round {
                    self.visited_in[from.index()] = self.round;
                    open.push(from);
                }
            }
        }
        false
    }
}
