//! The conditions under which nodes run: the nodes before them that may wait, and the Switch and loop nodes that decide
//! whether they run. Nodes with the same conditions can be awaited together, because they run in the same cases, and
//! none depends on the progress of another task more than the others do.

use crate::attr::{AttrList, AttrValue};
use crate::graph::{CONTROL, Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::Role;
use crate::topology::{Producer, Topology};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The largest total number of conditions in all distinct sets of a graph, which may grow with the square of the
/// graph's size.
const MAX_CONDITIONS: usize = 1 << 20;

/// A condition of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Condition {
    /// A node that may wait has ended.
    Waits(NodeId),
    /// The Switch nodes with this predicate have chosen this one of their two branches.
    Chosen(Output, u32),
    /// This output is alive, which decides whether the nodes after it run.
    Alive(Output),
    /// An iteration of the loop that this Enter node leads into is running.
    Within(NodeId),
}

impl Condition {
    fn decides(self) -> bool {
        !matches!(self, Condition::Waits(_))
    }
}

/// The number of a set of conditions; equal sets have equal numbers.
pub(super) type SetId = u32;

/// The set of conditions of each node of a graph. Equal sets are stored once, under one number.
#[derive(Debug)]
pub(super) struct Conditions {
    sets: Vec<Arc<[Condition]>>,
    ids: FxHashMap<Arc<[Condition]>, SetId>,
    unions: FxHashMap<(SetId, SetId), SetId>,
    /// The total number of conditions in all sets.
    total: usize,
    of_node: Vec<SetId>,
}

impl Conditions {
    /// Finds the conditions of `nodes`, which are in topological order and include their producers. Returns `None` if
    /// there are more than [`MAX_CONDITIONS`].
    ///
    /// Edges out of NextIteration are ignored: the Exit of a loop represents the nodes in the loop.
    pub(super) fn of(graph: &Graph, topology: &Topology, nodes: &[NodeId]) -> Option<Conditions> {
        let empty: Arc<[Condition]> = Arc::from([]);
        let mut conditions = Conditions {
            sets: vec![empty.clone()],
            ids: FxHashMap::from_iter([(empty, 0)]),
            unions: FxHashMap::default(),
            total: 0,
            of_node: vec![0; graph.len()],
        };
        for &id in nodes {
            conditions.of_node[id.index()] = conditions.after(graph, topology, id);
            if conditions.total > MAX_CONDITIONS {
                return None;
            }
        }
        Some(conditions)
    }

    /// Returns the set of conditions under which the nodes after a node run, including the condition that the node
    /// itself adds if it may wait or decides whether they run.
    pub(super) fn get(&self, id: NodeId) -> SetId {
        self.of_node[id.index()]
    }

    /// Returns the set of conditions under which a node starts.
    pub(super) fn before(&mut self, graph: &Graph, topology: &Topology, id: NodeId) -> SetId {
        let is_back_edge = |p: &&Producer| graph.node(p.node).op.role() == Role::NextIteration;
        let producers = topology.producers(id).iter().filter(|p| !is_back_edge(p));
        producers.fold(0, |set, producer| {
            let of_edge = self.of_edge(graph, topology, producer);
            self.union(set, of_edge)
        })
    }

    /// Returns whether nodes with these conditions are inside a loop.
    pub(super) fn is_in_loop(&self, set: SetId) -> bool {
        self.sets[set as usize].iter().any(|condition| matches!(condition, Condition::Within(_)))
    }

    /// Returns whether nodes with these conditions run in every case, once in each step.
    pub(super) fn is_unconditional(&self, set: SetId) -> bool {
        self.sets[set as usize].iter().all(|condition| !condition.decides())
    }

    /// Returns whether all conditions of `one` are conditions of `other`.
    pub(super) fn is_within(&self, one: SetId, other: SetId) -> bool {
        let other = &self.sets[other as usize];
        self.sets[one as usize].iter().all(|condition| other.binary_search(condition).is_ok())
    }

    fn after(&mut self, graph: &Graph, topology: &Topology, id: NodeId) -> SetId {
        let before = self.before(graph, topology, id);
        let node = graph.node(id);
        match node.op.role() {
            Role::Merge => self.merged(graph, topology, id, before),
            Role::Enter => self.with(before, Condition::Within(id)),
            Role::Exit => {
                let waits = self.filtered(before, |condition| !condition.decides());
                self.with(waits, Condition::Alive(Output::new(id, 0)))
            }
            Role::ControlTrigger => self.with(before, Condition::Alive(Output::new(id, 0))),
            _ if node.op.may_wait || calls_function(node) => self.with(before, Condition::Waits(id)),
            _ => before,
        }
    }

    /// Returns the conditions of the source of an edge and, if the source is a Switch, the condition that the edge's
    /// branch is chosen.
    fn of_edge(&mut self, graph: &Graph, topology: &Topology, edge: &Producer) -> SetId {
        let set = self.get(edge.node);
        let node = graph.node(edge.node);
        if node.op.role() != Role::Switch || edge.output == CONTROL {
            return set;
        }
        let predicate = topology.producers(edge.node).get(1).map(Producer::source);
        let has_two = node.op.outputs.len() == 2;
        match predicate.filter(|_| has_two) {
            Some(predicate) => self.with(set, Condition::Chosen(predicate, edge.output)),
            None => self.with(set, Condition::Alive(edge.source())),
        }
    }

    /// Returns the conditions of a Merge; `all` is the union of the conditions of its inputs. A Merge that joins both
    /// branches of a predicate runs whichever branch has been chosen, so the predicate's choice is no condition.
    fn merged(&mut self, graph: &Graph, topology: &Topology, id: NodeId, all: SetId) -> SetId {
        let merge = Condition::Alive(Output::new(id, 0));
        let [one, other] = topology.producers(id) else { return self.with(all, merge) };
        let mut sides = [one, other].map(|edge| self.of_edge(graph, topology, edge));
        let closes_loop = [one, other].iter().any(|p| graph.node(p.node).op.role() == Role::NextIteration);
        let Some((predicate, branch)) = self.only_in(sides[0], sides[1]).filter(|_| !closes_loop) else {
            return self.with(all, merge);
        };
        let chosen = [0, 1].map(|branch| Condition::Chosen(predicate, branch));
        let ends_branch = self.sets[sides[1] as usize].contains(&Condition::Chosen(predicate, 1 - branch));
        sides = sides.map(|side| self.filtered(side, |c| c.decides() && !chosen.contains(&c)));
        match ends_branch && sides[0] == sides[1] {
            true => self.filtered(all, |condition| !chosen.contains(&condition)),
            false => self.with(all, merge),
        }
    }

    /// Returns the predicate and branch of the only `Chosen` condition that is in the set `one` and not in `other`;
    /// `None` if there are none or several.
    fn only_in(&self, one: SetId, other: SetId) -> Option<(Output, u32)> {
        let other = &self.sets[other as usize];
        let mut choices =
            self.sets[one as usize].iter().filter(|c| !other.contains(c)).filter_map(|c| match *c {
                Condition::Chosen(predicate, branch) => Some((predicate, branch)),
                _ => None,
            });
        choices.next().filter(|_| choices.next().is_none())
    }

    fn with(&mut self, set: SetId, condition: Condition) -> SetId {
        let one = self.intern(vec![condition]);
        self.union(set, one)
    }

    fn filtered(&mut self, set: SetId, keep: impl Fn(Condition) -> bool) -> SetId {
        let kept = self.sets[set as usize].iter().copied().filter(|condition| keep(*condition)).collect();
        self.intern(kept)
    }

    fn union(&mut self, one: SetId, other: SetId) -> SetId {
        let pair = (one.min(other), one.max(other));
        if pair.0 == pair.1 || pair.0 == 0 {
            return pair.1;
        }
        if let Some(known) = self.unions.get(&pair) {
            return *known;
        }
        let mut all = [&*self.sets[one as usize], &*self.sets[other as usize]].concat();
        all.sort_unstable();
        all.dedup();
        let union = self.intern(all);
        self.unions.insert(pair, union);
        union
    }

    /// Returns the number of a set, given as a sorted list; a set that is not stored yet gets a new number.
    fn intern(&mut self, set: Vec<Condition>) -> SetId {
        if let Some(known) = self.ids.get(&*set) {
            return *known;
        }
        let (set, id): (Arc<[Condition]>, SetId) = (set.into(), self.sets.len() as SetId);
        self.total += set.len();
        self.sets.push(set.clone());
        self.ids.insert(set, id);
        id
    }
}

/// Returns whether a node calls functions, whose nodes may wait.
fn calls_function(node: &Node) -> bool {
    let is_function =
        |value: &AttrValue| matches!(value, AttrValue::Func(_) | AttrValue::List(AttrList::Func(_)));
    node.attrs.iter().any(|(_, value)| is_function(value))
}
