//! Static analysis of liveness in partitions with branches and loops: it finds nodes that are alive whenever a given
//! node is, and thereby constants that need not run.

use graph::{DType, Graph, NodeId, Output, Producer, Role, Topology};
use smallvec::SmallVec;

/// The limits of the search: the number of nodes collected as alive for one consumer, and the number of edges followed
/// back from a node. The relevant nodes of loops and branches are only a few edges away.
const MAX_NODES: usize = 64;
const MAX_STEPS: u32 = 4;

/// Returns whether a node with a constant value may be replaced by its value: it waits for nothing, or it is alive
/// wherever each of its consumers would be alive without it, like the constants in a loop body. Nodes with side effects
/// that the node waits for are also waited for by its consumers.
pub(super) fn is_alive_with_consumers(graph: &Graph, topology: &Topology, id: NodeId) -> bool {
    let awaited = topology.producers(id);
    if awaited.iter().any(|edge| !edge.is_control()) {
        return false;
    }
    let has_value = !graph.node(id).op.outputs.is_empty();
    let follows = |consumer| {
        let alive = AliveNodes::with_inputs_of(graph, topology, consumer);
        awaited.iter().all(|edge| alive.has_edge(edge, MAX_STEPS))
    };
    awaited.is_empty() || has_value && topology.consumers(id).iter().all(|consumer| follows(consumer.node))
}

/// The nodes known to be alive in every iteration in which the inputs of a given node are alive. All of them run before
/// the given node.
struct AliveNodes<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    nodes: SmallVec<[NodeId; 16]>,
    /// Predicates, each with the Switch output that it is known to select.
    selected: SmallVec<[(Output, u32); 4]>,
}

impl<'a> AliveNodes<'a> {
    /// Returns the nodes that are alive if the inputs of `node` are. Inputs from producers without data inputs are
    /// ignored, because such a producer may be a constant that does not run.
    fn with_inputs_of(graph: &'a Graph, topology: &'a Topology, node: NodeId) -> AliveNodes<'a> {
        let mut alive = AliveNodes { graph, topology, nodes: SmallVec::new(), selected: SmallVec::new() };
        if runs_with_all_inputs(graph, node) {
            let takes_values = |node| topology.producers(node).iter().any(|edge| !edge.is_control());
            alive.add(topology.producers(node).iter().filter(|edge| takes_values(edge.node)));
        }
        let mut next = 0;
        while let Some(&node) = alive.nodes.get(next) {
            next += 1;
            if runs_with_all_inputs(graph, node) {
                alive.add(topology.producers(node).iter());
            }
        }
        alive
    }

    fn add<'e>(&mut self, edges: impl Iterator<Item = &'e Producer>) {
        for edge in edges {
            if let Some(predicate) = self.predicate(edge) {
                self.selected.push((predicate, edge.output));
            }
            if self.nodes.len() < MAX_NODES && !self.nodes.contains(&edge.node) {
                self.nodes.push(edge.node);
            }
        }
    }

    /// Returns the predicate of the Switch that the edge comes from; `None` if the producer is not a Switch or the edge
    /// is a control edge.
    fn predicate(&self, edge: &Producer) -> Option<Output> {
        let is_branch = !edge.is_control() && self.graph.node(edge.node).op.role() == Role::Switch;
        let data = self.topology.producers(edge.node).iter();
        let mut predicates = data.filter(|input| is_branch && !input.is_control() && input.input == 1);
        predicates.next().map(Producer::source)
    }

    /// Returns whether the edge is known to be alive.
    fn has_edge(&self, edge: &Producer, steps: u32) -> bool {
        let is_taken = |predicate| self.selected.contains(&(predicate, edge.output));
        self.predicate(edge).is_none_or(is_taken) && self.has_node(edge.node, steps)
    }

    fn has_node(&self, node: NodeId, steps: u32) -> bool {
        let follows = || {
            steps > 0
                && runs_with_all_inputs(self.graph, node)
                && self.is_pure(node)
                && !self.topology.producers(node).is_empty()
                && self.topology.producers(node).iter().all(|edge| self.has_edge(edge, steps - 1))
        };
        self.nodes.contains(&node) || follows()
    }

    /// Returns whether the time at which the node runs has no effect: it has no side effects, and reads no state that
    /// other nodes write.
    fn is_pure(&self, node: NodeId) -> bool {
        let reads_state = |edge: &Producer| {
            let port = self.graph.output_type(edge.source());
            port.is_ok_and(|port| port.is_ref || port.dtype == DType::Resource)
        };
        let mut values = self.topology.producers(node).iter().filter(|edge| !edge.is_control());
        !self.graph.node(node).op.is_stateful() && !values.any(reads_state)
    }
}

/// Returns whether the node is alive exactly in those iterations in which all its inputs are alive.
fn runs_with_all_inputs(graph: &Graph, node: NodeId) -> bool {
    matches!(graph.node(node).op.role(), Role::Compute | Role::Send | Role::Switch | Role::LoopCond)
}
