//! The times at which values that are not computed by kernels become available: received tensors, and the values of
//! control-flow ops.

use super::frame_plan::{FrameAssignment, NodeKind};
use graph::{Graph, Node, NodeId, RecvOrigin, Role, Topology};
use rustc_hash::FxHashMap;

/// The availability of one node's value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Availability {
    /// The event of the step that makes the value available.
    pub(super) at: AvailableAt,
    /// The number of the first node of the group of nodes whose values become available together, at one event.
    pub(super) group: u32,
    /// The number of the loop frame that the node runs in.
    pub(super) frame: u32,
    /// True if the node runs only if a Switch selects its branch. Switches that decide on a loop's next iteration do
    /// not count.
    pub(super) is_conditional: bool,
}

/// The event of a step at which a node's value becomes available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AvailableAt {
    /// The node itself has run, after its producers.
    Computed,
    /// The step starts.
    AtStart,
    /// The tensor is received.
    Received,
    /// The previous iteration of the loop has computed the value, in each iteration.
    NextIteration,
    /// The values of all nodes of the same role in the loop are available: its Enters, the Switches that start an
    /// iteration, or its Exits.
    LoopBoundary,
}

/// The availability of the values of all nodes.
pub(super) struct Availabilities {
    /// The availability of each node's value, indexed by node number.
    pub(super) by_node: Vec<Availability>,
    /// For the first Enter of a loop, the first Switch that starts an iteration: an iteration starts only once all
    /// values have entered the loop, so that waiting for the Switch implies waiting for the Enter.
    pub(super) implied: FxHashMap<u32, u32>,
}

impl Availabilities {
    /// Computes the availability of all nodes. `order` has every node after its producers.
    pub(super) fn new(
        graph: &Graph,
        topology: &Topology,
        frames: Option<&FrameAssignment>,
        order: &[NodeId],
    ) -> Availabilities {
        let mut by_node: Vec<Availability> =
            graph.nodes().map(|(id, node)| Availability::of(node, id, frames)).collect();
        let mut origins = FxHashMap::<&str, u32>::default();
        for (id, node) in graph.nodes() {
            if let Some(origin) = RecvOrigin::of(node) {
                by_node[id.index()].group = *origins.entry(origin.node).or_insert(id.index() as u32);
            }
        }
        let Some(frames) = frames else { return Availabilities { by_node, implied: FxHashMap::default() } };
        let mut boundaries = FxHashMap::<(Role, u32), u32>::default();
        for &id in order {
            let role = graph.node(id).op.role();
            let frame = match frames.kind(id) {
                NodeKind::Enter { frame, .. } => frame,
                NodeKind::Exit => by_node[id.index()].frame,
                NodeKind::Plain if role == Role::Switch && is_loop_switch(graph, topology, id) => {
                    by_node[id.index()].frame
                }
                NodeKind::Merge(_) if is_loop_merge(graph, topology, id) => {
                    by_node[id.index()].at = AvailableAt::NextIteration;
                    continue;
                }
                NodeKind::Merge(_) => continue,
                NodeKind::Plain | NodeKind::NextIteration => {
                    let mut producers = topology.producers(id).iter();
                    by_node[id.index()].is_conditional = role == Role::Switch
                        || producers.any(|producer| by_node[producer.node.index()].is_conditional);
                    continue;
                }
            };
            let group = *boundaries.entry((role, frame)).or_insert(id.index() as u32);
            by_node[id.index()] =
                Availability { at: AvailableAt::LoopBoundary, group, ..by_node[id.index()] };
        }
        let enters = boundaries.iter().filter(|((role, _), _)| *role == Role::Enter);
        let implied = enters
            .filter_map(|((_, frame), &enter)| Some((enter, *boundaries.get(&(Role::Switch, *frame))?)));
        let implied = implied.collect();
        Availabilities { by_node, implied }
    }
}

impl Availability {
    /// Returns the availability of the node's outputs as far as the node's op and frame determine it.
    fn of(node: &Node, id: NodeId, frames: Option<&FrameAssignment>) -> Availability {
        let is_fed = || RecvOrigin::of(node).is_some_and(|origin| origin.is_fed);
        let at = match node.op.role() {
            Role::Recv if is_fed() => AvailableAt::AtStart,
            Role::Recv => AvailableAt::Received,
            _ => AvailableAt::Computed,
        };
        let id = id.index() as u32;
        Availability { at, group: id, frame: frames.map_or(0, |frames| frames.of(id)), is_conditional: false }
    }
}

/// Returns whether a Merge has a NextIteration among its inputs.
fn is_loop_merge(graph: &Graph, topology: &Topology, merge: NodeId) -> bool {
    topology
        .producers(merge)
        .iter()
        .any(|producer| graph.node(producer.node).op.role() == Role::NextIteration)
}

/// Returns whether a Switch decides on the next iteration of a loop: its data comes from the loop's Merge, its
/// predicate from the LoopCond, and its first output leads to Exits only.
fn is_loop_switch(graph: &Graph, topology: &Topology, switch: NodeId) -> bool {
    let [data, by] = topology.producers(switch) else { return false };
    let goes_out = |node: NodeId| graph.node(node).op.role() == Role::Exit;
    let mut others =
        topology.consumers(switch).iter().filter(|consumer| consumer.is_control() || consumer.output == 0);
    graph.node(data.node).op.role() == Role::Merge
        && is_loop_merge(graph, topology, data.node)
        && graph.node(by.node).op.role() == Role::LoopCond
        && others.all(|consumer| goes_out(consumer.node))
}
