//! The frames of a partition with control flow: the frame of each node, and the initial pending counts.
//!
//! In a plan, a frame is the body of a loop. Nodes are numbered frame by frame, then segments are numbered frame by
//! frame, so that the state of one iteration is dense.

use super::iteration::{Iteration, IterationState};
use super::segment_layout::Units;
use device::Result;
use graph::{Edge, Graph, NodeId, Role, Topology};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::Arc;

/// The part of a plan that describes control flow; empty if there is none. Frame 0 has the nodes outside all loops.
#[derive(Default)]
pub(super) struct FramePlan {
    /// The kinds of all nodes, followed by those of all segments.
    pub(super) kinds: Vec<NodeKind>,
    pub(super) frames: Vec<FrameInfo>,
    /// The target of each data edge of the plan.
    targets: Vec<Target>,
    /// Iterations of the outermost frame that no step uses, for reuse.
    pub(super) roots: Mutex<Vec<Arc<Iteration>>>,
    /// The pending counts of all nodes, followed by those of all segments, at the start of an iteration.
    pub(super) counts: Vec<u64>,
}

/// The rule by which a node's outputs are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    /// Outputs go to consumers in the same iteration.
    Plain,
    /// A Merge with this number of inputs, which runs when the first alive input arrives.
    Merge(u32),
    /// An Enter, whose output goes into frame `frame`: to the first iteration, or to all iterations if it is constant.
    Enter { frame: u32, is_constant: bool },
    /// An Exit, whose output goes to the enclosing frame.
    Exit,
    /// A NextIteration, whose output goes to the following iteration.
    NextIteration,
}

/// The consumer of a data edge.
#[derive(Clone, Copy)]
pub(super) struct Target {
    /// The consuming node, or the segment that contains it.
    pub(super) node: u32,
    pub(super) is_merge: bool,
}

/// A loop frame of a plan.
pub(super) struct FrameInfo {
    pub(super) name: Arc<str>,
    /// The fingerprint of the frame's name, from which rendezvous keys are made.
    pub(super) hash: u64,
    parent: u32,
    pub(super) nodes: Range<usize>,
    pub(super) segments: Range<usize>,
    pub(super) slots: Range<usize>,
    pub(super) enters: usize,
    /// The number of iterations that may be open at once.
    pub(super) max_open: usize,
    /// The states of iterations that have ended, for reuse.
    pub(super) idle: Mutex<Vec<IterationState>>,
}

impl FramePlan {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the targets of a range of the plan's edges.
    pub(super) fn targets(&self, edges: Range<usize>) -> &[Target] {
        &self.targets[edges]
    }
}

/// The frame and kind of each node, before the nodes are renumbered.
pub(super) struct FrameAssignment {
    of: Vec<u32>,
    infos: Vec<FrameInfo>,
    kinds: Vec<NodeKind>,
}

/// Returns whether the graph has control-flow ops other than ControlTrigger.
pub(super) fn has_control_flow(graph: &Graph) -> bool {
    graph.nodes().any(|(_, node)| {
        matches!(node.op.role(), Role::Switch | Role::Merge | Role::Enter | Role::Exit | Role::NextIteration)
    })
}

impl FrameAssignment {
    /// Assigns each node to a frame.
    ///
    /// # Errors
    /// `InvalidArgument` for a node whose inputs come from different frames, or an Exit or NextIteration outside all
    /// loops.
    pub(super) fn new(graph: &Graph, topology: &Topology) -> Result<FrameAssignment> {
        let mut frames = FrameAssignment {
            of: vec![0; graph.len()],
            infos: vec![FrameInfo::new("", 0, usize::MAX)],
            kinds: vec![NodeKind::Plain; graph.len()],
        };
        let mut frame_numbers: FxHashMap<(u32, String), u32> = FxHashMap::default();
        for id in topology.order(graph)? {
            let node = graph.node(id);
            let producers = topology.producers(id).iter();
            let mut forward = producers.filter(|p| graph.node(p.node).op.role() != Role::NextIteration);
            let inside = forward.next().map_or(0, |p| frames.of_output(p.node));
            frames.of[id.index()] = inside;
            frames.kinds[id.index()] = match node.op.role() {
                Role::Merge => NodeKind::Merge(node.input_types()?.len() as u32),
                Role::Enter => {
                    let name = node.attr::<String>("frame_name")?;
                    let max_open = node.attr::<i64>("parallel_iterations")?;
                    let Some(max_open) = usize::try_from(max_open).ok().filter(|p| *p > 0) else {
                        device::invalid!("{}: parallel_iterations is {max_open}, not > 0", node.name);
                    };
                    let frame = *frame_numbers.entry((inside, name)).or_insert_with_key(|(parent, name)| {
                        frames.infos.push(FrameInfo::new(name, *parent, max_open));
                        (frames.infos.len() - 1) as u32
                    });
                    frames.infos[frame as usize].enters += 1;
                    NodeKind::Enter { frame, is_constant: node.attr("is_constant")? }
                }
                Role::Exit | Role::NextIteration if inside == 0 => {
                    device::invalid!("{{{{node {}}}}} ({}) is in no loop", node.name, node.op.name())
                }
                Role::Exit => NodeKind::Exit,
                Role::NextIteration => NodeKind::NextIteration,
                _ => NodeKind::Plain,
            };
        }
        for id in graph.ids() {
            let of = frames.of[id.index()];
            if let Some(other) =
                topology.producers(id).iter().find(|p| frames.of_output(p.node) != of).map(|p| p.node)
            {
                let first = topology.producers(id)[0].node;
                let name = |id: NodeId| &graph.node(id).name;
                let frame = |id: NodeId| &frames.infos[frames.of_output(id) as usize].name;
                device::invalid!(
                    "{{{{node {}}}}} has inputs from different frames. The input {{{{node {}}}}} is in frame \
                     '{}'. The input {{{{node {}}}}} is in frame '{}'.",
                    name(id),
                    name(first),
                    frame(first),
                    name(other),
                    frame(other)
                );
            }
        }
        Ok(frames)
    }

    fn of_output(&self, id: NodeId) -> u32 {
        let inside = self.of[id.index()];
        match self.kinds[id.index()] {
            NodeKind::Enter { frame, .. } => frame,
            NodeKind::Exit => self.infos[inside as usize].parent,
            _ => inside,
        }
    }

    /// Returns the graph with its nodes sorted by frame, and the frame and kind of each node in the sorted graph.
    pub(super) fn sorted(self, graph: &Graph, topology: &Topology) -> Result<(Graph, FrameAssignment)> {
        let mut order: Vec<NodeId> = graph.ids().collect();
        order.sort_by_key(|id| self.of[id.index()]);
        let mut new_ids = vec![NodeId::new(0); graph.len()];
        for (i, id) in order.iter().enumerate() {
            new_ids[id.index()] = NodeId::new(i);
        }
        let edges = order.iter().flat_map(|&id| {
            let to = new_ids[id.index()];
            topology.producers(id).iter().map(move |p| (p, to))
        });
        let edges =
            edges.map(|(p, to)| Edge { from: new_ids[p.node.index()], output: p.output, to, input: p.input });
        let nodes = order.iter().map(|&id| graph.node(id).clone()).collect();
        let sorted = Graph::assemble(nodes, edges.collect::<Vec<_>>().into_iter())?;
        let of = order.iter().map(|id| self.of[id.index()]).collect();
        let kinds = order.iter().map(|id| self.kinds[id.index()]).collect();
        Ok((sorted, FrameAssignment { of, kinds, infos: self.infos }))
    }

    pub(super) fn is_merge(&self, node: usize) -> bool {
        matches!(self.kinds.get(node), Some(NodeKind::Merge(_)))
    }

    pub(super) fn kind(&self, node: NodeId) -> NodeKind {
        self.kinds[node.index()]
    }

    /// Returns the frame that a node runs in.
    pub(super) fn of(&self, node: u32) -> u32 {
        self.of[node as usize]
    }

    /// Returns the frame plan that steps use. `pending` has the pending count of each unit, which is a node or a
    /// segment, `slots` the input slots of each node, and `edges` the slot of each data edge.
    pub(super) fn plan(
        self,
        units: &Units,
        pending: &[u32],
        slots: &[Range<usize>],
        edges: impl Iterator<Item = usize>,
    ) -> FramePlan {
        let FrameAssignment { of, mut infos, mut kinds } = self;
        let num_slots = slots.last().map_or(0, |last| last.end);
        let frames_of_segments: Vec<u32> = units.firsts().map(|first| of[first as usize]).collect();
        let (mut next, mut next_segment) = (0, 0);
        for (frame, info) in infos.iter_mut().enumerate() {
            let (start, start_segment) = (next, next_segment);
            while of.get(next).is_some_and(|f| *f as usize == frame) {
                next += 1;
            }
            while frames_of_segments.get(next_segment).is_some_and(|f| *f as usize == frame) {
                next_segment += 1;
            }
            let slot = |node: usize| slots.get(node).map_or(num_slots, |slots| slots.start);
            info.nodes = start..next;
            info.segments = of.len() + start_segment..of.len() + next_segment;
            info.slots = slot(start)..slot(next);
        }
        let mut owner = vec![0; num_slots];
        for (node, slots) in slots.iter().enumerate() {
            owner[slots.clone()].fill(node);
        }
        let is_merge = |node: usize| matches!(kinds[node], NodeKind::Merge(_));
        let target =
            |slot: usize| Target { node: units.of(owner[slot] as u32), is_merge: is_merge(owner[slot]) };
        let targets = edges.map(target).collect();
        kinds.resize(pending.len(), NodeKind::Plain);
        let counts = pending.iter().map(|&count| u64::from(count)).collect();
        FramePlan { kinds, frames: infos, targets, counts, roots: Mutex::default() }
    }
}

impl FrameInfo {
    fn new(name: &str, parent: u32, max_open: usize) -> FrameInfo {
        FrameInfo {
            name: name.into(),
            hash: graph::fingerprint::hash64(name.as_bytes()),
            parent,
            nodes: 0..0,
            segments: 0..0,
            slots: 0..0,
            enters: 0,
            max_open,
            idle: Mutex::default(),
        }
    }
}
