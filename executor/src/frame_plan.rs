//! The frames of a partition with control flow: which node runs in which, and what each needs to start.
//!
//! A frame is a loop's body. Nodes are numbered frame by frame, and so are segments behind them, so that the state of one
//! turn of a loop is as dense as that of a step.

use super::frames::{Cells, Iteration};
use super::segmented::Units;
use device::Result;
use graph::{Edge, Graph, NodeId, Role, Topology};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::Arc;

/// What control flow adds to a plan; nothing if there is none. Frame 0 is what is in no loop.
#[derive(Default)]
pub(super) struct FramePlan {
    pub(super) kinds: Vec<Kind>,
    pub(super) frames: Vec<FrameInfo>,
    /// By data edge of the plan: its consumer, or the segment that has it, and whether that is a Merge.
    targets: Vec<Target>,
    /// Outermost iterations that no step uses.
    pub(super) roots: Mutex<Vec<Arc<Iteration>>>,
    /// By node, and then by segment: the count at the start of a turn.
    pub(super) counts: Vec<u64>,
}

/// How a node's end goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    /// Runs on the first of so many inputs.
    Merge(u32),
    /// Its outputs are in this frame.
    Enter {
        frame: u32,
        is_constant: bool,
    },
    Exit,
    NextIteration,
}

#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) node: u32,
    pub(super) is_merge: bool,
}

pub(super) struct FrameInfo {
    pub(super) name: Arc<str>,
    /// The fingerprint of the name, which keys between tasks are made of.
    pub(super) hash: u64,
    parent: u32,
    pub(super) nodes: Range<usize>,
    pub(super) segments: Range<usize>,
    pub(super) slots: Range<usize>,
    pub(super) enters: usize,
    /// So many turns may be under way at once.
    pub(super) parallel: usize,
    /// State of turns that have ended.
    pub(super) idle: Mutex<Vec<Cells>>,
}

impl FramePlan {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The consumers of a run of the plan's edges.
    pub(super) fn targets(&self, edges: Range<usize>) -> &[Target] {
        &self.targets[edges]
    }
}

/// Which frame each node runs in, before anything is numbered.
pub(super) struct Frames {
    of: Vec<u32>,
    infos: Vec<FrameInfo>,
    kinds: Vec<Kind>,
}

/// Whether any node needs more than to run once after its producers.
pub(super) fn has_control_flow(graph: &Graph) -> bool {
    graph.nodes().any(|(_, node)| {
        matches!(node.op.role(), Role::Switch | Role::Merge | Role::Enter | Role::Exit | Role::NextIteration)
    })
}

impl Frames {
    /// # Errors
    /// `InvalidArgument` for a node whose inputs come from different frames, or that leaves a loop that it is
    /// not in.
    pub(super) fn new(graph: &Graph, topology: &Topology) -> Result<Frames> {
        let mut frames = Frames {
            of: vec![0; graph.len()],
            infos: vec![FrameInfo::new("", 0, usize::MAX)],
            kinds: vec![Kind::Plain; graph.len()],
        };
        let mut known: FxHashMap<(u32, String), u32> = FxHashMap::default();
        for id in topology.order(graph)? {
            let node = graph.node(id);
            let producers = topology.producers(id).iter();
            let mut forward = producers.filter(|p| graph.node(p.node).op.role() != Role::NextIteration);
            let inside = forward.next().map_or(0, |p| frames.of_output(p.node));
            frames.of[id.index()] = inside;
            frames.kinds[id.index()] = match node.op.role() {
                Role::Merge => Kind::Merge(node.input_types()?.len() as u32),
                Role::Enter => {
                    let name = node.attr::<String>("frame_name")?;
                    let parallel = node.attr::<i64>("parallel_iterations")?;
                    let Some(parallel) = usize::try_from(parallel).ok().filter(|p| *p > 0) else {
                        device::invalid!("{}: parallel_iterations is {parallel}, not > 0", node.name);
                    };
                    let frame = *known.entry((inside, name)).or_insert_with_key(|(parent, name)| {
                        frames.infos.push(FrameInfo::new(name, *parent, parallel));
                        (frames.infos.len() - 1) as u32
                    });
                    frames.infos[frame as usize].enters += 1;
                    Kind::Enter { frame, is_constant: node.attr("is_constant")? }
                }
                Role::Exit | Role::NextIteration if inside == 0 => {
                    device::invalid!("{{{{node {}}}}} ({}) is in no loop", node.name, node.op.name())
                }
                Role::Exit => Kind::Exit,
                Role::NextIteration => Kind::NextIteration,
                _ => Kind::Plain,
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
            Kind::Enter { frame, .. } => frame,
            Kind::Exit => self.infos[inside as usize].parent,
            _ => inside,
        }
    }

    /// The graph with its nodes frame by frame, and the frames of that.
    pub(super) fn sorted(self, graph: &Graph, topology: &Topology) -> Result<(Graph, Frames)> {
        let mut order: Vec<NodeId> = graph.ids().collect();
        order.sort_by_key(|id| self.of[id.index()]);
        let mut place = vec![NodeId::new(0); graph.len()];
        for (i, id) in order.iter().enumerate() {
            place[id.index()] = NodeId::new(i);
        }
        let edges = order.iter().flat_map(|&id| {
            let to = place[id.index()];
            topology.producers(id).iter().map(move |p| (p, to))
        });
        let edges =
            edges.map(|(p, to)| Edge { from: place[p.node.index()], output: p.output, to, input: p.input });
        let nodes = order.iter().map(|&id| graph.node(id).clone()).collect();
        let sorted = Graph::assemble(nodes, edges.collect::<Vec<_>>().into_iter())?;
        let of = order.iter().map(|id| self.of[id.index()]).collect();
        let kinds = order.iter().map(|id| self.kinds[id.index()]).collect();
        Ok((sorted, Frames { of, kinds, infos: self.infos }))
    }

    pub(super) fn is_merge(&self, node: usize) -> bool {
        matches!(self.kinds.get(node), Some(Kind::Merge(_)))
    }

    pub(super) fn kind(&self, node: NodeId) -> Kind {
        self.kinds[node.index()]
    }

    /// The frame that a node runs in.
    pub(super) fn of(&self, node: u32) -> u32 {
        self.of[node as usize]
    }

    /// What steps need, once the plan has counted what units wait for and numbered the inputs of nodes; `edges` are
    /// the inputs that its edges lead to.
    pub(super) fn plan(
        self,
        units: &Units,
        pending: &[u32],
        slots: &[Range<usize>],
        edges: impl Iterator<Item = usize>,
    ) -> FramePlan {
        let Frames { of, mut infos, mut kinds } = self;
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
        let is_merge = |node: usize| matches!(kinds[node], Kind::Merge(_));
        let target =
            |slot: usize| Target { node: units.of(owner[slot] as u32), is_merge: is_merge(owner[slot]) };
        let targets = edges.map(target).collect();
        kinds.resize(pending.len(), Kind::Plain);
        let counts = pending.iter().map(|&count| u64::from(count)).collect();
        FramePlan { kinds, frames: infos, targets, counts, roots: Mutex::default() }
    }
}

impl FrameInfo {
    fn new(name: &str, parent: u32, parallel: usize) -> FrameInfo {
        FrameInfo {
            name: name.into(),
            hash: graph::fingerprint::hash64(name.as_bytes()),
            parent,
            nodes: 0..0,
            segments: 0..0,
            slots: 0..0,
            enters: 0,
            parallel,
            idle: Mutex::default(),
        }
    }
}
