//! Leaves out work whose results nobody reads: what only control edges lead from, such as the gradient by an input that
//! is fed, which TensorFlow's clients wait for all the same.

use super::{checked, is_placeholder};
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::{self, Role};
use crate::topology::Topology;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

/// Takes out stateless nodes of which no value is read, neither by a node that stays nor by who looks at `keep`. Who ran
/// after one of them runs after what it ran after: by an edge if that is one node, else by way of a `NoOp` of its
/// name. A node that takes a reference as such stays, as does one that a Switch or a loop decides over.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is no loop.
pub fn unread(graph: &Graph, keep: &[NodeId]) -> Result<Graph> {
    let topology = Topology::new(graph);
    let order = topology.order(graph)?;
    let found = Found::new(graph, &topology, &order, keep)?;
    match found.count {
        0 => Ok(graph.clone()),
        _ => found.rebuild(graph, &topology),
    }
}

/// So many nodes are looked at, for each edge of the graph, to find waits that others imply.
const LOOKS: usize = 4;

type Waits = SmallVec<[NodeId; 4]>;

struct Found {
    is_unread: Vec<bool>,
    count: usize,
    /// What an unread node ran after, but for what others of these run after.
    waits: Vec<Waits>,
    /// Unread nodes that nobody has to wait for by name: their readers wait for what they did.
    is_passed_by: Vec<bool>,
}

impl Found {
    fn new(graph: &Graph, topology: &Topology, order: &[NodeId], keep: &[NodeId]) -> Result<Found> {
        let keep: FxHashSet<NodeId> = keep.iter().copied().collect();
        let mut found = Found {
            is_unread: vec![false; graph.len()],
            count: 0,
            waits: vec![Waits::new(); graph.len()],
            is_passed_by: vec![false; graph.len()],
        };
        for &id in order.iter().rev() {
            let consumers = topology.consumers(id);
            let is_unread = !consumers.is_empty()
                && consumers.iter().all(|c| c.is_control() || found.is_unread[c.node.index()])
                && !keep.contains(&id)
                && is_without_effect(graph, topology, id)?;
            found.is_unread[id.index()] = is_unread;
            found.count += usize::from(is_unread);
        }
        if found.count > 0 {
            found.find_waits(graph, topology, order);
        }
        Ok(found)
    }

    fn find_waits(&mut self, graph: &Graph, topology: &Topology, order: &[NodeId]) {
        let mut ancestry = Ancestry::new(graph, topology, order);
        for &id in order.iter().filter(|id| self.is_unread[id.index()]) {
            let mut waits = Waits::new();
            for producer in topology.producers(id) {
                let from = producer.node;
                let instead = if self.is_passed_by[from.index()] {
                    self.waits[from.index()].as_slice()
                } else {
                    &[from]
                };
                for &from in instead {
                    if !waits.contains(&from) && !is_there_from_the_start(graph, topology, from) {
                        waits.push(from);
                    }
                }
            }
            let implied = |&from: &NodeId| {
                waits.iter().any(|&other| other != from && ancestry.comes_after(other, from))
            };
            let implied: Waits = waits.iter().copied().filter(implied).collect();
            waits.retain(|from| !implied.contains(from));
            // One edge to another device is better than one for each reader.
            let here = |from: &NodeId| graph.node(*from).device == graph.node(id).device;
            self.is_passed_by[id.index()] =
                waits.len() <= 1 && (waits.iter().all(here) || topology.consumers(id).len() == 1);
            self.waits[id.index()] = waits;
        }
    }

    fn rebuild(&self, graph: &Graph, topology: &Topology) -> Result<Graph> {
        let no_op = ops::lookup("NoOp").ok_or_else(|| Error::unimplemented("the pass needs the op NoOp"))?;
        let mut out = Graph::with_capacity(graph.len(), graph.num_edges()).with_settings_of(graph);
        let mut new_ids = vec![None; graph.len()];
        for (id, node) in graph.nodes().filter(|(id, _)| !self.is_passed_by[id.index()]) {
            let node = match self.is_unread[id.index()] {
                true => Node { device: node.device.clone(), ..Node::new(node.name.clone(), no_op) },
                false => node.clone(),
            };
            new_ids[id.index()] = Some(out.add_unconnected(node)?);
        }
        let mut after = Waits::new();
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

/// Whether running the node changes nothing but its outputs, and it runs wherever its producers have run.
fn is_without_effect(graph: &Graph, topology: &Topology, id: NodeId) -> Result<bool> {
    let node = graph.node(id);
    if node.op.role() != Role::Compute || node.op.is_stateful() || is_placeholder(node.op) {
        return Ok(false);
    }
    let (inputs, outputs) = (node.input_types()?, node.output_types()?);
    // What it is there for is to fail.
    let checks = node.op.name() == "CheckNumerics";
    let takes_references = inputs.iter().chain(&outputs).any(|port| port.is_ref);
    let decides = |id: NodeId| !matches!(graph.node(id).op.role(), Role::Compute | Role::Recv);
    let is_decided_over = topology.producers(id).iter().any(|p| !p.is_control() && decides(p.node));
    Ok(!outputs.is_empty() && !checks && !takes_references && !is_decided_over)
}

/// Whether waiting for the node is no waiting.
fn is_there_from_the_start(graph: &Graph, topology: &Topology, id: NodeId) -> bool {
    topology.producers(id).is_empty() && graph.node(id).op.name() == "Const"
}

/// Who comes after whom, as far as a look at a bounded number of edges tells.
struct Ancestry<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    position: Vec<u32>,
    seen: Vec<u32>,
    round: u32,
    left: usize,
}

impl<'a> Ancestry<'a> {
    fn new(graph: &'a Graph, topology: &'a Topology, order: &[NodeId]) -> Ancestry<'a> {
        let mut position = vec![0; topology.len()];
        order.iter().zip(0..).for_each(|(id, at)| position[id.index()] = at);
        let left = LOOKS.saturating_mul(topology.num_edges());
        Ancestry { graph, topology, position, seen: vec![0; topology.len()], round: 0, left }
    }

    /// Whether `late` is known to run after `early`, and not to run where that is dead.
    fn comes_after(&mut self, late: NodeId, early: NodeId) -> bool {
        self.round += 1;
        let mut open = vec![late];
        while let Some(id) = open.pop() {
            // They run though an input is dead.
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
                // Edges that close loops lead to what is later.
                let is_between = (self.position[early.index()]..self.position[id.index()])
                    .contains(&self.position[from.index()]);
                if is_between && self.seen[from.index()] != self.round {
                    self.seen[from.index()] = self.round;
                    open.push(from);
                }
            }
        }
        false
    }
}
