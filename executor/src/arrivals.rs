//! When the nodes of a partition that no kernel makes have their values: what is received, and what steers.

use super::frame_plan::{Frames, Kind};
use graph::{Graph, Node, NodeId, Origin, Role, Topology};
use rustc_hash::FxHashMap;

/// What is known of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) when: When,
    /// The first of the nodes that end when it does.
    pub(super) with: u32,
    /// The frame that it runs in.
    pub(super) frame: u32,
    /// It runs, or does not, by what a Switch has chosen that is not a loop's.
    pub(super) is_conditional: bool,
}

/// When a node has its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// When it has run, after what it waits for.
    Computed,
    /// When the step begins.
    AtStart,
    /// When that comes.
    Received,
    /// In each turn of a loop, when the turn before has made it.
    Turn,
    /// With all such of one loop: the ways into it, into a turn of it, and out of it.
    Gate,
}

/// What is known of all nodes.
pub(super) struct Arrivals {
    pub(super) of: Vec<Arrival>,
    /// By the first of the ways into a loop, the first of those into a turn of it: there is no turn before all has come
    /// in that it needs.
    pub(super) implied: FxHashMap<u32, u32>,
}

impl Arrivals {
    /// `order` has every node after its producers.
    pub(super) fn new(
        graph: &Graph,
        topology: &Topology,
        frames: Option<&Frames>,
        order: &[NodeId],
    ) -> Arrivals {
        let mut of: Vec<Arrival> = graph.nodes().map(|(id, node)| Arrival::of(node, id, frames)).collect();
        let mut origins = FxHashMap::<&str, u32>::default();
        for (id, node) in graph.nodes() {
            if let Some(origin) = Origin::of(node) {
                of[id.index()].with = *origins.entry(origin.node).or_insert(id.index() as u32);
            }
        }
        let Some(frames) = frames else { return Arrivals { of, implied: FxHashMap::default() } };
        let mut gates = FxHashMap::<(Role, u32), u32>::default();
        for &id in order {
            let role = graph.node(id).op.role();
            let frame = match frames.kind(id) {
                Kind::Enter { frame, .. } => frame,
                Kind::Exit => of[id.index()].frame,
                Kind::Plain if role == Role::Switch && is_of_loop(graph, topology, id) => {
                    of[id.index()].frame
                }
                Kind::Merge(_) if comes_around(graph, topology, id) => {
                    of[id.index()].when = When::Turn;
                    continue;
                }
                Kind::Merge(_) => continue,
                Kind::Plain | Kind::NextIteration => {
                    let mut producers = topology.producers(id).iter();
                    of[id.index()].is_conditional = role == Role::Switch
                        || producers.any(|producer| of[producer.node.index()].is_conditional);
                    continue;
                }
            };
            let with = *gates.entry((role, frame)).or_insert(id.index() as u32);
            of[id.index()] = Arrival { when: When::Gate, with, ..of[id.index()] };
        }
        let ways_in = gates.iter().filter(|((role, _), _)| *role == Role::Enter);
        let implied =
            ways_in.filter_map(|((_, frame), &way)| Some((way, *gates.get(&(Role::Switch, *frame))?)));
        let implied = implied.collect();
        Arrivals { of, implied }
    }
}

impl Arrival {
    /// What can be said of the node by itself.
    fn of(node: &Node, id: NodeId, frames: Option<&Frames>) -> Arrival {
        let is_fed = || Origin::of(node).is_some_and(|origin| origin.is_fed);
        let when = match node.op.role() {
            Role::Recv if is_fed() => When::AtStart,
            Role::Recv => When::Received,
            _ => When::Computed,
        };
        let id = id.index() as u32;
        Arrival { when, with: id, frame: frames.map_or(0, |frames| frames.of(id)), is_conditional: false }
    }
}

/// Whether a Merge is given what a NextIteration brings.
fn comes_around(graph: &Graph, topology: &Topology, merge: NodeId) -> bool {
    topology
        .producers(merge)
        .iter()
        .any(|producer| graph.node(producer.node).op.role() == Role::NextIteration)
}

/// Whether a Switch decides about a loop's turn: of what came around, by the loop's condition, and one way is out.
fn is_of_loop(graph: &Graph, topology: &Topology, switch: NodeId) -> bool {
    let [data, by] = topology.producers(switch) else { return false };
    let goes_out = |node: NodeId| graph.node(node).op.role() == Role::Exit;
    let mut others =
        topology.consumers(switch).iter().filter(|consumer| consumer.is_control() || consumer.output == 0);
    graph.node(data.node).op.role() == Role::Merge
        && comes_around(graph, topology, data.node)
        && graph.node(by.node).op.role() == Role::LoopCond
        && others.all(|consumer| goes_out(consumer.node))
}
