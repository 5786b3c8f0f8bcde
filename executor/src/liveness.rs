//! What is known to live if a node does, where branches and loops let nodes die: enough to see which constants in them
//! need not run.

use graph::{DType, Graph, NodeId, Output, Producer, Role, Topology};
use smallvec::SmallVec;

/// So many nodes are looked at for one consumer, and so many steps are gone from the node in question: what loops and
/// branches are made of is near.
const MOST_NODES: usize = 64;
const MOST_STEPS: u32 = 4;

/// Whether nothing is lost if the node, whose value does not change, does not run: it waits for nothing, or lives
/// wherever each of its consumers would live without it, as constants in the turn of a loop do. What acts and is waited
/// for through it, its consumers wait for besides.
pub(super) fn follows_its_consumers(graph: &Graph, topology: &Topology, id: NodeId) -> bool {
    let awaited = topology.producers(id);
    if awaited.iter().any(|edge| !edge.is_control()) {
        return false;
    }
    let has_value = !graph.node(id).op.outputs.is_empty();
    let follows = |consumer| {
        let known = Known::where_lives(graph, topology, consumer);
        awaited.iter().all(|edge| known.has(edge, MOST_STEPS))
    };
    awaited.is_empty() || has_value && topology.consumers(id).iter().all(|consumer| follows(consumer.node))
}

/// What lives where the inputs of some node do, in the same turn of the same loop. All of it has run before the node.
struct Known<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    nodes: SmallVec<[NodeId; 16]>,
    /// Predicates, and which output of a Switch they choose.
    ways: SmallVec<[(Output, u32); 4]>,
}

impl<'a> Known<'a> {
    /// Inputs that may themselves be left out, because no values come to them, tell nothing.
    fn where_lives(graph: &'a Graph, topology: &'a Topology, node: NodeId) -> Known<'a> {
        let mut known = Known { graph, topology, nodes: SmallVec::new(), ways: SmallVec::new() };
        if runs_with_all_inputs(graph, node) {
            let takes_values = |node| topology.producers(node).iter().any(|edge| !edge.is_control());
            known.learn(topology.producers(node).iter().filter(|edge| takes_values(edge.node)));
        }
        let mut next = 0;
        while let Some(&node) = known.nodes.get(next) {
            next += 1;
            if runs_with_all_inputs(graph, node) {
                known.learn(topology.producers(node).iter());
            }
        }
        known
    }

    fn learn<'e>(&mut self, edges: impl Iterator<Item = &'e Producer>) {
        for edge in edges {
            if let Some(predicate) = self.predicate(edge) {
                self.ways.push((predicate, edge.output));
            }
            if self.nodes.len() < MOST_NODES && !self.nodes.contains(&edge.node) {
                self.nodes.push(edge.node);
            }
        }
    }

    /// By what a Switch chooses whether a value takes this edge.
    fn predicate(&self, edge: &Producer) -> Option<Output> {
        let is_way = !edge.is_control() && self.graph.node(edge.node).op.role() == Role::Switch;
        let data = self.topology.producers(edge.node).iter();
        let mut predicates = data.filter(|input| is_way && !input.is_control() && input.input == 1);
        predicates.next().map(Producer::source)
    }

    /// Whether something lives on the edge.
    fn has(&self, edge: &Producer, steps: u32) -> bool {
        let is_taken = |predicate| self.ways.contains(&(predicate, edge.output));
        self.predicate(edge).is_none_or(is_taken) && self.has_node(edge.node, steps)
    }

    fn has_node(&self, node: NodeId, steps: u32) -> bool {
        let follows = || {
            steps > 0
                && runs_with_all_inputs(self.graph, node)
                && self.is_pure(node)
                && !self.topology.producers(node).is_empty()
                && self.topology.producers(node).iter().all(|edge| self.has(edge, steps - 1))
        };
        self.nodes.contains(&node) || follows()
    }

    /// Whether nobody can tell when the node runs: it does not act, and reads nothing that others write.
    fn is_pure(&self, node: NodeId) -> bool {
        let reads_state = |edge: &Producer| {
            let port = self.graph.output_type(edge.source());
            port.is_ok_and(|port| port.is_ref || port.dtype == DType::Resource)
        };
        let mut values = self.topology.producers(node).iter().filter(|edge| !edge.is_control());
        !self.graph.node(node).op.is_stateful() && !values.any(reads_state)
    }
}

/// Whether the node lives just where all its inputs do, and in their turn.
fn runs_with_all_inputs(graph: &Graph, node: NodeId) -> bool {
    matches!(graph.node(node).op.role(), Role::Compute | Role::Send | Role::Switch | Role::LoopCond)
}
