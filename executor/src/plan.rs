//! A partition compiled to dense arrays: everything about it that no step changes.

use super::action::{self, Action, Wanted, memories};
use super::frame_plan::{self, FramePlan, Frames};
use super::liveness::follows_its_consumers;
use super::segment::Segment;
use super::segmented::{self, Units};
use crate::kernel_cache::KernelCache;
use device::Device;
use device::function::Functions;
use device::kernel::Step;
use device::value::Value;
use device::{Error, Result};
use graph::{Graph, Node, NodeId, Role, Topology};
use std::ops::Range;
use std::sync::Arc;

/// A partition, by dense node number. Each data edge has one slot: the input of its consumer.
pub(crate) struct Plan {
    pub(super) nodes: Vec<PlanNode>,
    /// How many distinct nodes must run before each node.
    pub(super) pending: Vec<u32>,
    /// Nodes that wait for nothing, in the order in which they are to be started from the back.
    pub(super) sources: Vec<u32>,
    pub(super) num_slots: usize,
    pub(super) num_receives: usize,
    /// What constant nodes give, by the numbers in [`ConstInput`].
    pub(super) constants: Vec<Value>,
    /// By node: its first number in `constants`.
    constant_of: Vec<u32>,
    edges: Vec<Edge>,
    successors: Vec<Successor>,
    const_inputs: Vec<ConstInput>,
    /// Control edges, source and destination, by destination.
    controls: Vec<(u32, u32)>,
    /// By slot: where its value comes from.
    producers: Vec<Source>,
    /// By slot: whether it takes a reference.
    takes_ref: Vec<bool>,
    /// By slot: where it wants its value; empty if all memory is the host's.
    wanted: Vec<Wanted>,
    pub(super) frames: FramePlan,
    /// By the numbers in [`Action::Segment`].
    pub(super) segments: Vec<Segment>,
    /// A step is over sooner than another thread would begin it.
    pub(super) is_brief: bool,
    /// A step begins with a few receives, and with nothing else.
    pub(super) only_waits: bool,
}

/// Partitions of more nodes are not brief, whatever they are.
const MOST_BRIEF: usize = 32;

const MANY_CONSUMERS: usize = 32;

pub(super) struct PlanNode {
    pub(super) action: Action,
    pub(super) node: Arc<Node>,
    slots: Span,
    edges: Span,
    successors: Span,
    const_inputs: Span,
    pub(super) outputs: u32,
    /// Some input is a reference.
    pub(super) has_refs: bool,
}

impl PlanNode {
    /// What it gives in every step, if it does.
    fn constant(&self, device: &Arc<Device>, step: &Arc<Step>) -> Option<Vec<Value>> {
        action::constant(&self.action, &self.node, self.outputs as usize, device, step)
    }

    /// Whether it ends sooner than another thread would begin it, or ends by itself elsewhere. A variable whose value
    /// is taken may be locked by who writes it; a reference that is passed on is not looked into.
    fn is_brief(&self, device: &Arc<Device>, takes_ref: &[bool]) -> bool {
        let is_brief = match &self.action {
            Action::Kernel(_) => device.find_kernel(&self.node).is_some_and(|def| def.is_brief),
            Action::Send { .. } | Action::Recv { .. } | Action::Nothing | Action::Constant => true,
            Action::Steer(_) | Action::Segment(_) => false,
        };
        is_brief && (!self.has_refs || takes_ref[self.slots.range()].iter().all(|takes| *takes))
    }
}

#[derive(Clone, Copy, Default)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// A data edge, as its producer sees it. Those of one output are adjacent.
#[derive(Clone, Copy)]
pub(super) struct Edge {
    pub(super) output: u32,
    pub(super) slot: u32,
    /// The output's last consumer takes the value; the others share it.
    pub(super) is_last: bool,
}

/// A node that waits for another.
#[derive(Clone, Copy)]
pub(super) struct Successor(u32);

impl Successor {
    const ONLY: u32 = 1 << 31;

    pub(super) fn node(self) -> u32 {
        self.0 & !Successor::ONLY
    }

    /// Whether it waits for nothing else.
    pub(super) fn waits_for_one(self) -> bool {
        self.0 & Successor::ONLY != 0
    }
}

#[derive(Clone, Copy)]
pub(super) struct ConstInput {
    pub(super) slot: u32,
    pub(super) constant: u32,
}

#[derive(Clone, Copy)]
struct Source {
    node: u32,
    output: u32,
}

impl Plan {
    pub(super) fn new(
        graph: &Graph,
        device: &Arc<Device>,
        kernels: &KernelCache,
        functions: &Arc<dyn Functions>,
    ) -> Result<Plan> {
        if graph.len() >= Successor::ONLY as usize {
            device::invalid!("a partition of {} nodes is too large", graph.len());
        }
        let topology = Topology::new(graph);
        topology.order(graph)?;
        if !frame_plan::has_control_flow(graph) {
            return Plan::of(graph, &topology, None, device, (kernels, functions));
        }
        let frames = Frames::new(graph, &topology)?;
        let (graph, frames) = frames.sorted(graph, &topology)?;
        Plan::of(&graph, &Topology::new(&graph), Some(frames), device, (kernels, functions))
    }

    fn of(
        graph: &Graph,
        topology: &Topology,
        frames: Option<Frames>,
        device: &Arc<Device>,
        made_from: (&KernelCache, &Arc<dyn Functions>),
    ) -> Result<Plan> {
        let mut plan = Plan {
            nodes: Vec::with_capacity(graph.len()),
            pending: vec![0; graph.len()],
            sources: Vec::new(),
            num_slots: 0,
            num_receives: 0,
            constants: Vec::new(),
            constant_of: vec![NOT_CONSTANT; graph.len()],
            controls: Vec::new(),
            edges: Vec::with_capacity(graph.num_edges()),
            successors: Vec::with_capacity(graph.num_edges()),
            const_inputs: Vec::new(),
            producers: Vec::with_capacity(graph.num_edges()),
            takes_ref: Vec::with_capacity(graph.num_edges()),
            wanted: Vec::new(),
            frames: FramePlan::default(),
            segments: Vec::new(),
            is_brief: false,
            only_waits: false,
        };
        let passes_ref = passes_ref(graph, topology)?;
        let is_merge = |node: usize| frames.as_ref().is_some_and(|frames| frames.is_merge(node));
        let step = action::lone_step();
        for id in graph.ids() {
            let planned = plan.node(graph, topology, id, device, made_from, &passes_ref)?;
            plan.nodes.push(planned);
            // A Merge is told of each input that comes.
            let feeds_merge =
                || topology.consumers(id).iter().any(|c| !c.is_control() && is_merge(c.node.index()));
            if follows_its_consumers(graph, topology, id)
                && !feeds_merge()
                && let Some(values) = plan.nodes[id.index()].constant(device, &step)
            {
                plan.nodes[id.index()].action = Action::Constant;
                plan.constant_of[id.index()] = plan.constants.len() as u32;
                plan.constants.extend(values);
            }
            if let Action::Recv { .. } = plan.nodes[id.index()].action {
                plan.num_receives += 1;
            }
        }
        plan.num_slots = plan.producers.len();
        let segments = match device.processor().can_capture() {
            true => segmented::find(&plan, graph, topology, frames.as_ref(), device)?,
            false => Vec::new(),
        };
        let units = Units::new(graph.len(), segments);
        plan.add_segments(&units);
        plan.connect(topology, &units, is_merge);
        plan.start(&units);
        for unit in units.segments() {
            plan.lay_out(&units, unit, device)?;
        }
        if let Some(frames) = frames {
            let slots = plan.nodes[..graph.len()].iter().map(|node| node.slots.range());
            let (slots, edges) =
                (slots.collect::<Vec<Range<usize>>>(), plan.edges.iter().map(|edge| edge.slot as usize));
            plan.frames = frames.plan(&units, &plan.pending, &slots, edges);
        }
        let waits = |&id: &u32| matches!(plan.nodes[id as usize].action, Action::Recv { .. });
        plan.only_waits = plan.sources.len() <= MOST_BRIEF && plan.sources.iter().all(waits);
        plan.is_brief = plan.nodes.len() <= MOST_BRIEF
            && plan.nodes.iter().all(|node| node.is_brief(device, &plan.takes_ref));
        Ok(plan)
    }

    /// The node with its slots; its edges follow once every node has slots.
    fn node(
        &mut self,
        graph: &Graph,
        topology: &Topology,
        id: NodeId,
        device: &Arc<Device>,
        (kernels, functions): (&KernelCache, &Arc<dyn Functions>),
        passes_ref: &[bool],
    ) -> Result<PlanNode> {
        let node = graph.node(id);
        let (inputs, outputs) = (node.input_types()?, node.output_types()?);
        let first = self.producers.len() as u32;
        let mut has_refs = false;
        for (slot, edge) in topology.producers(id).iter().take_while(|p| !p.is_control()).enumerate() {
            if edge.input as usize != slot || slot >= inputs.len() {
                device::invalid!("Input {} of node {} is fed twice or not at all", edge.input, node.name);
            }
            has_refs |= graph.output_type(edge.source())?.is_ref || passes_ref[edge.node.index()];
            self.producers.push(Source { node: edge.node.index() as u32, output: edge.output });
        }
        let end = self.producers.len() as u32;
        let controls = topology.producers(id).iter().filter(|p| p.is_control());
        self.controls.extend(controls.map(|p| (p.node.index() as u32, id.index() as u32)));
        if (end - first) as usize != inputs.len() {
            let missing = inputs.len() - (end - first) as usize;
            device::invalid!("Incomplete graph, missing {missing} inputs for {}", node.name);
        }
        let hands_on = passes_ref[id.index()] || is_fetch(node);
        // What has no output beside it, such as a shape, is not handed on.
        let is_handed_on = |slot| hands_on && (slot < outputs.len() || outputs.is_empty());
        self.takes_ref
            .extend(inputs.iter().enumerate().map(|(slot, port)| port.is_ref || is_handed_on(slot)));
        if device.processor().has_own_memory() {
            self.wanted.extend(memories(device, node, &node.op.inputs, &inputs)?);
        }
        Ok(PlanNode {
            action: Action::new(device, kernels, functions, node, &outputs)?,
            node: Arc::new(node.clone()),
            slots: Span { start: first, end },
            edges: Span::default(),
            successors: Span::default(),
            const_inputs: Span::default(),
            outputs: outputs.len() as u32,
            has_refs,
        })
    }

    /// Gives each segment a place behind the nodes.
    fn add_segments(&mut self, units: &Units) {
        for (number, first) in units.firsts().enumerate() {
            let PlanNode { node, slots, .. } = &self.nodes[first as usize];
            let (node, start, none) = (node.clone(), slots.start, Span::default());
            self.nodes.push(PlanNode {
                action: Action::Segment(number as u32),
                node,
                // None, in the frame of those of its kernels.
                slots: Span { start, end: start },
                edges: none,
                successors: none,
                const_inputs: none,
                outputs: 0,
                has_refs: false,
            });
            self.pending.push(0);
            self.constant_of.push(NOT_CONSTANT);
        }
    }

    /// Lays out what a segment takes, and gives to whom.
    fn lay_out(&mut self, units: &Units, unit: u32, device: &Arc<Device>) -> Result<()> {
        let (segment, outputs) = segmented::segment(self, units, unit, device)?;
        let first = self.edges.len();
        for (output, slots) in outputs.iter().enumerate() {
            let last = slots.len().saturating_sub(1);
            let edge = |(i, &slot)| Edge { output: output as u32, slot, is_last: i == last };
            self.edges.extend(slots.iter().enumerate().map(edge));
        }
        let node = &mut self.nodes[unit as usize];
        (node.edges, node.outputs) = (span(first, self.edges.len()), outputs.len() as u32);
        self.segments.push(segment);
        Ok(())
    }

    /// Lays out what each node gives to whom, and counts what each unit, which is a node or a segment, waits for: of its
    /// data a Merge waits for one, whichever that is.
    fn connect(&mut self, topology: &Topology, units: &Units, is_merge: impl Fn(usize) -> bool) {
        for (id, pending) in self.pending.iter_mut().enumerate() {
            *pending = u32::from(is_merge(id));
        }
        // The last producer counted for each unit: edges of one producer to one consumer count once.
        let mut counted = vec![u32::MAX; self.nodes.len()];
        let mut waits: Vec<u32> = Vec::new();
        for unit in units.all() {
            let first_wait = waits.len();
            for &i in &*units.nodes(unit) {
                let i = i as usize;
                if self.constant_of[i] != NOT_CONSTANT {
                    continue;
                }
                let first_edge = self.edges.len();
                for consumer in topology.consumers(NodeId::new(i)) {
                    let node = consumer.node.index();
                    if !consumer.is_control() {
                        let slot = self.nodes[node].slots.start + consumer.input;
                        self.edges.push(Edge { output: consumer.output, slot, is_last: false });
                        if is_merge(node) {
                            continue;
                        }
                    }
                    let to = units.of(node as u32);
                    let is_counted = counted[to as usize] == unit || to == unit;
                    if !is_counted && self.constant_of[node] == NOT_CONSTANT {
                        counted[to as usize] = unit;
                        self.pending[to as usize] += 1;
                        waits.push(to);
                    }
                }
                let edges = &mut self.edges[first_edge..];
                edges.sort_by_key(|e| e.output);
                for k in 0..edges.len() {
                    edges[k].is_last = edges.get(k + 1).is_none_or(|next| next.output != edges[k].output);
                }
                self.nodes[i].edges = span(first_edge, self.edges.len());
            }
            self.nodes[unit as usize].successors = span(first_wait, waits.len());
        }
        for i in 0..self.nodes.len() {
            let waits = &mut waits[self.nodes[i].successors.range()];
            // The last made ready runs first: what others wait for elsewhere, then what came first.
            waits.reverse();
            waits.sort_by_key(|&to| self.nodes[to as usize].action.is_awaited_elsewhere());
            self.successors.extend(waits.iter().map(|&to| {
                let only = if self.pending[to as usize] == 1 { Successor::ONLY } else { 0 };
                Successor(to | only)
            }));
        }
        for i in 0..self.nodes.len() {
            let first = self.const_inputs.len();
            for slot in self.nodes[i].slots.range() {
                let source = self.producers[slot];
                let constant = self.constant_of[source.node as usize];
                if constant != NOT_CONSTANT {
                    let constant = constant + source.output;
                    self.const_inputs.push(ConstInput { slot: slot as u32, constant });
                }
            }
            self.nodes[i].const_inputs = span(first, self.const_inputs.len());
        }
    }

    fn start(&mut self, units: &Units) {
        let waits_for_nothing = |id: &u32| {
            self.pending[*id as usize] == 0 && !matches!(self.nodes[*id as usize].action, Action::Constant)
        };
        self.sources = units.all().filter(waits_for_nothing).collect();
        self.sources.reverse();
        self.sources.sort_by_key(|&id| self.nodes[id as usize].action.is_awaited_elsewhere());
    }

    /// Fills inputs that are constants.
    #[inline]
    pub(super) fn fill_constants(&self, node: &PlanNode, inputs: &mut [Value]) {
        for constant in self.const_inputs(node) {
            let input = &mut inputs[(constant.slot - node.slots.start) as usize];
            if matches!(input, Value::None) {
                self.constants[constant.constant as usize].copy_to(input);
            }
        }
    }

    /// The error of a kernel that did not set an output which others wait for.
    #[cold]
    pub(super) fn missing(&self, node: u32, output: u32) -> Error {
        Error::internal(format!("Missing {output}-th output from {}", self.nodes[node as usize].node.name))
    }

    pub(super) fn slots(&self, node: &PlanNode) -> Range<usize> {
        node.slots.range()
    }

    pub(super) fn edges(&self, node: &PlanNode) -> &[Edge] {
        &self.edges[node.edges.range()]
    }

    /// Whether so many read what the node gives that they are better given it by the thread that runs them: another
    /// processor's memory is slow.
    pub(super) fn has_many_consumers(&self, id: u32) -> bool {
        self.nodes[id as usize].edges.range().len() >= MANY_CONSUMERS
    }

    /// The places of a node's edges among all.
    pub(super) fn edge_range(&self, node: &PlanNode) -> Range<usize> {
        node.edges.range()
    }

    pub(super) fn successors(&self, node: &PlanNode) -> &[Successor] {
        &self.successors[node.successors.range()]
    }

    fn const_inputs(&self, node: &PlanNode) -> &[ConstInput] {
        &self.const_inputs[node.const_inputs.range()]
    }

    /// Whether the node behind `slot` wants a reference as it is, not the value behind it.
    pub(super) fn takes_ref(&self, slot: usize) -> bool {
        self.takes_ref[slot]
    }

    /// The node and its output that feed `slot`.
    pub(super) fn source(&self, slot: usize) -> (u32, u32) {
        let Source { node, output } = self.producers[slot];
        (node, output)
    }

    /// The name of the output that feeds `slot`: `node`, or `node:index` if it is not the first.
    pub(super) fn input_name(&self, slot: usize) -> String {
        let Source { node, output } = self.producers[slot];
        let name = &self.nodes[node as usize].node.name;
        if output == 0 { name.to_string() } else { format!("{name}:{output}") }
    }

    /// `name = Op(input, other:1, ^control)`.
    pub(super) fn label(&self, id: u32) -> String {
        let PlanNode { node, slots, .. } = &self.nodes[id as usize];
        let mut inputs: Vec<String> = slots.range().map(|slot| self.input_name(slot)).collect();
        let first = self.controls.partition_point(|&(_, to)| to < id);
        let controls = self.controls[first..].iter().take_while(|&&(_, to)| to == id);
        inputs.extend(controls.map(|&(from, _)| format!("^{}", self.nodes[from as usize].node.name)));
        format!("{} = {}({})", node.name, node.op.name(), inputs.join(", "))
    }

    /// What a constant node gives.
    pub(super) fn constants_of(&self, id: u32) -> &[Value] {
        let first = self.constant_of[id as usize] as usize;
        let count = self.nodes[id as usize].outputs as usize;
        self.constants.get(first..first + count).unwrap_or_default()
    }

    /// In which memory the value at `slot` must be.
    pub(super) fn wanted(&self, slot: usize) -> Wanted {
        self.wanted.get(slot).copied().unwrap_or(Wanted::Any)
    }

    pub(super) fn has_own_memory(&self) -> bool {
        !self.wanted.is_empty()
    }
}

/// Whether the node gives its input to the client. Of a reference that is what the variable holds when the step ends,
/// whatever in the step writes it: clients of TensorFlow are used to that.
fn is_fetch(node: &Node) -> bool {
    node.op.role() == Role::Send && node.attr::<bool>("client_terminated").unwrap_or(false)
}

/// By node: whether it passes on a reference that it is given. Only to who reads a value when it runs; what goes
/// around in a loop or through a switch is a value.
fn passes_ref(graph: &Graph, topology: &Topology) -> Result<Vec<bool>> {
    let mut passes = vec![false; graph.len()];
    if !graph.nodes().any(|(_, node)| node.op.outputs.iter().any(|output| output.is_ref)) {
        return Ok(passes);
    }
    let reads = |role| matches!(role, Role::Compute | Role::Send);
    for id in topology.order(graph)? {
        if !graph.node(id).op.def.traits.passes_reference {
            continue;
        }
        let mut consumers = topology.consumers(id).iter().filter(|consumer| !consumer.is_control());
        let mut is_given = false;
        for producer in topology.producers(id).iter().filter(|producer| !producer.is_control()) {
            is_given |= passes[producer.node.index()] || graph.output_type(producer.source())?.is_ref;
        }
        passes[id.index()] = is_given && consumers.all(|consumer| reads(graph.node(consumer.node).op.role()));
    }
    Ok(passes)
}

const NOT_CONSTANT: u32 = u32::MAX;

fn span(start: usize, end: usize) -> Span {
    Span { start: start as u32, end: end as u32 }
}
