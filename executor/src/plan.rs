//! A partition compiled to dense arrays, which no step changes.

use super::action::{self, Action, RequiredMemory, port_memories};
use super::frame_plan::{self, FrameAssignment, FramePlan};
use super::liveness::is_alive_with_consumers;
use super::proximity::Proximity;
use super::segment::Segment;
use super::segment_layout::{self, Units};
use crate::kernel_cache::KernelCache;
use device::Device;
use device::function::Functions;
use device::kernel::Step;
use device::value::Value;
use device::{Error, Result};
use graph::{Graph, Node, NodeId, Role, Topology};
use std::ops::Range;
use std::sync::Arc;

/// A compiled partition, in arrays that are indexed by node number. Each data edge has one slot, which is the input of
/// its consumer.
pub(crate) struct Plan {
    pub(super) nodes: Vec<PlanNode>,
    /// The pending count of each node: the number of distinct nodes that must run before it.
    pub(super) pending: Vec<u32>,
    /// The nodes that are ready at the start of a step, in reverse order of their start.
    pub(super) sources: Vec<u32>,
    pub(super) num_slots: usize,
    pub(super) num_receives: usize,
    /// The outputs of all constant nodes, to which [`ConstInput`] refers by index.
    pub(super) constants: Vec<Value>,
    /// The index of each constant node's first output in `constants`; [`NOT_CONSTANT`] for other nodes.
    constant_of: Vec<u32>,
    edges: Vec<Edge>,
    successors: Vec<Successor>,
    const_inputs: Vec<ConstInput>,
    /// Control edges as source and destination, sorted by destination.
    controls: Vec<(u32, u32)>,
    /// The producer of each slot.
    producers: Vec<SlotSource>,
    /// True for each slot that takes a reference.
    takes_ref: Vec<bool>,
    /// The required memory of each slot; empty if all memory is the host's.
    required_memory: Vec<RequiredMemory>,
    pub(super) frames: FramePlan,
    /// The segments, to which [`Action::Segment`] refers by index.
    pub(super) segments: Vec<Segment>,
    /// True if a step takes less time than another thread takes to start.
    pub(super) is_brief: bool,
    /// True if a step starts with a few receives and nothing else.
    pub(super) starts_with_receives: bool,
}

/// The maximum number of nodes of a brief partition, and of receives that the calling thread starts.
const MAX_BRIEF_NODES: usize = 32;

/// The minimum number of consumers of a received value that is delivered by the thread that runs the consumers.
const MANY_CONSUMERS: usize = 32;

/// A node of a plan.
pub(super) struct PlanNode {
    pub(super) action: Action,
    pub(super) node: Arc<Node>,
    slots: Span,
    edges: Span,
    successors: Span,
    const_inputs: Span,
    pub(super) outputs: u32,
    /// True if an input is a reference.
    pub(super) has_refs: bool,
}

impl PlanNode {
    /// Returns the node's outputs if they are the same in every step.
    fn constant(&self, device: &Arc<Device>, step: &Arc<Step>) -> Option<Vec<Value>> {
        action::constant_outputs(&self.action, &self.node, self.outputs as usize, device, step)
    }

    /// Returns whether the node takes less time than another thread takes to start, or completes asynchronously. A node
    /// that dereferences a variable is not brief, because the variable may be locked by a writer; a node that passes on
    /// the reference may be brief.
    fn is_brief(&self, device: &Arc<Device>, takes_ref: &[bool]) -> bool {
        let is_brief = match &self.action {
            Action::Kernel(_) => device.find_kernel(&self.node).is_some_and(|def| def.is_brief),
            Action::Send { .. } | Action::Recv { .. } | Action::Trigger | Action::Constant => true,
            Action::ControlFlow(_) | Action::Segment(_) => false,
        };
        is_brief && (!self.has_refs || takes_ref[self.slots.range()].iter().all(|takes| *takes))
    }
}

/// A range of indices of one of the plan's arrays.
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

/// A data edge of a producer. The edges of one output are adjacent.
#[derive(Clone, Copy)]
pub(super) struct Edge {
    pub(super) output: u32,
    pub(super) slot: u32,
    /// True for the last edge of an output: its consumer gets the value itself, and the other consumers get copies that
    /// share the buffer.
    pub(super) is_last: bool,
}

/// A consumer of a node: when the node ends, the pending count of the consumer is decremented.
#[derive(Clone, Copy)]
pub(super) struct Successor(u32);

impl Successor {
    const SOLE_WAIT: u32 = 1 << 31;

    pub(super) fn node(self) -> u32 {
        self.0 & !Successor::SOLE_WAIT
    }

    /// Returns whether the consumer waits for no other node.
    pub(super) fn is_sole_wait(self) -> bool {
        self.0 & Successor::SOLE_WAIT != 0
    }
}

/// An input slot whose value is a constant.
#[derive(Clone, Copy)]
pub(super) struct ConstInput {
    pub(super) slot: u32,
    pub(super) constant: u32,
}

/// The output that feeds a slot.
#[derive(Clone, Copy)]
struct SlotSource {
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
        if graph.len() >= Successor::SOLE_WAIT as usize {
            device::invalid!("a partition of {} nodes is too large", graph.len());
        }
        let topology = Topology::new(graph);
        topology.order(graph)?;
        if !frame_plan::has_control_flow(graph) {
            return Plan::compile(graph, &topology, None, device, (kernels, functions));
        }
        let frames = FrameAssignment::new(graph, &topology)?;
        let (graph, frames) = frames.sorted(graph, &topology)?;
        Plan::compile(&graph, &Topology::new(&graph), Some(frames), device, (kernels, functions))
    }

    fn compile(
        graph: &Graph,
        topology: &Topology,
        frames: Option<FrameAssignment>,
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
            required_memory: Vec::new(),
            frames: FramePlan::default(),
            segments: Vec::new(),
            is_brief: false,
            starts_with_receives: false,
        };
        let passes_ref = passes_ref(graph, topology)?;
        let is_merge = |node: usize| frames.as_ref().is_some_and(|frames| frames.is_merge(node));
        let step = action::constants_step();
        for id in graph.ids() {
            let planned = plan.node(graph, topology, id, device, made_from, &passes_ref)?;
            plan.nodes.push(planned);
            // A constant input of a Merge must be delivered like any other, because the Merge runs on the first input
            // that arrives.
            let feeds_merge =
                || topology.consumers(id).iter().any(|c| !c.is_control() && is_merge(c.node.index()));
            if is_alive_with_consumers(graph, topology, id)
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
            true => segment_layout::find(&plan, graph, topology, frames.as_ref(), device)?,
            false => Vec::new(),
        };
        let units = Units::new(graph.len(), segments);
        plan.add_segments(&units);
        let proximity = plan.connect(topology, &units, is_merge);
        plan.find_sources(&units, &proximity);
        for unit in units.segments() {
            plan.lay_out_segment(&units, unit, device)?;
        }
        if let Some(frames) = frames {
            let slots = plan.nodes[..graph.len()].iter().map(|node| node.slots.range());
            let (slots, edges) =
                (slots.collect::<Vec<Range<usize>>>(), plan.edges.iter().map(|edge| edge.slot as usize));
            plan.frames = frames.plan(&units, &plan.pending, &slots, edges);
        }
        let waits = |&id: &u32| matches!(plan.nodes[id as usize].action, Action::Recv { .. });
        plan.starts_with_receives = plan.sources.len() <= MAX_BRIEF_NODES && plan.sources.iter().all(waits);
        plan.is_brief = plan.nodes.len() <= MAX_BRIEF_NODES
            && plan.nodes.iter().all(|node| node.is_brief(device, &plan.takes_ref));
        Ok(plan)
    }

    /// Returns a node of the graph with its slots; the edges are added once every node has slots.
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
            self.producers.push(SlotSource { node: edge.node.index() as u32, output: edge.output });
        }
        let end = self.producers.len() as u32;
        let controls = topology.producers(id).iter().filter(|p| p.is_control());
        self.controls.extend(controls.map(|p| (p.node.index() as u32, id.index() as u32)));
        if (end - first) as usize != inputs.len() {
            let missing = inputs.len() - (end - first) as usize;
            device::invalid!("Incomplete graph, missing {missing} inputs for {}", node.name);
        }
        let passes_on = passes_ref[id.index()] || is_fetch(node);
        // An input without a corresponding output, such as a shape, is not passed on.
        let is_passed_on = |slot| passes_on && (slot < outputs.len() || outputs.is_empty());
        self.takes_ref
            .extend(inputs.iter().enumerate().map(|(slot, port)| port.is_ref || is_passed_on(slot)));
        if device.processor().has_own_memory() {
            self.required_memory.extend(port_memories(device, node, &node.op.inputs, &inputs)?);
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

    /// Adds an entry for each segment to `nodes`, after the nodes of the graph.
    fn add_segments(&mut self, units: &Units) {
        for (number, first) in units.firsts().enumerate() {
            let PlanNode { node, slots, .. } = &self.nodes[first as usize];
            let (node, start, none) = (node.clone(), slots.start, Span::default());
            self.nodes.push(PlanNode {
                action: Action::Segment(number as u32),
                node,
                // A segment has no slots of its own: the range is empty, and lies among the slots of the frame that has
                // the segment's kernels.
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

    /// Determines a segment's inputs and outputs, and the edges of the outputs.
    fn lay_out_segment(&mut self, units: &Units, unit: u32, device: &Arc<Device>) -> Result<()> {
        let (segment, outputs) = segment_layout::segment(self, units, unit, device)?;
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

    /// Lays out the edges of each node, and computes the pending count of each unit, which is a node or a segment. A
    /// Merge counts one for all its data inputs together. Returns the order of units that become ready together.
    fn connect(&mut self, topology: &Topology, units: &Units, is_merge: impl Fn(usize) -> bool) -> Proximity {
        for (id, pending) in self.pending.iter_mut().enumerate() {
            *pending = u32::from(is_merge(id));
        }
        // For each unit, the last producer that was counted: several edges from one producer to a unit count once.
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
        let proximity = Proximity::new(
            self.nodes.len(),
            |unit| self.nodes[unit as usize].action.is_awaited_elsewhere(),
            |unit| &waits[self.nodes[unit as usize].successors.range()],
        );
        for i in 0..self.nodes.len() {
            let waits = &mut waits[self.nodes[i].successors.range()];
            // Equally near successors are in reverse order of their edges, because the last one runs first.
            waits.reverse();
            proximity.sort(waits);
            self.successors.extend(waits.iter().map(|&to| {
                let only = if self.pending[to as usize] == 1 { Successor::SOLE_WAIT } else { 0 };
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
        proximity
    }

    /// Determines the nodes that are ready at the start of a step.
    fn find_sources(&mut self, units: &Units, proximity: &Proximity) {
        let waits_for_nothing = |id: &u32| {
            self.pending[*id as usize] == 0 && !matches!(self.nodes[*id as usize].action, Action::Constant)
        };
        self.sources = units.all().filter(waits_for_nothing).collect();
        self.sources.reverse();
        proximity.sort(&mut self.sources);
    }

    /// Copies the values of a node's constant inputs into the empty slots among `inputs`.
    #[inline]
    pub(super) fn fill_constants(&self, node: &PlanNode, inputs: &mut [Value]) {
        for constant in self.const_inputs(node) {
            let input = &mut inputs[(constant.slot - node.slots.start) as usize];
            if matches!(input, Value::None) {
                self.constants[constant.constant as usize].copy_to(input);
            }
        }
    }

    /// Creates the error of a kernel that did not set an output which has consumers.
    #[cold]
    pub(super) fn missing_output_error(&self, node: u32, output: u32) -> Error {
        Error::internal(format!("Missing {output}-th output from {}", self.nodes[node as usize].node.name))
    }

    pub(super) fn slots(&self, node: &PlanNode) -> Range<usize> {
        node.slots.range()
    }

    pub(super) fn edges(&self, node: &PlanNode) -> &[Edge] {
        &self.edges[node.edges.range()]
    }

    /// Returns whether the node has so many consumers that the thread that runs the consumers should also deliver the
    /// node's value to them. Delivery writes to the consumers' slots, which would otherwise be in another processor's
    /// cache.
    pub(super) fn has_many_consumers(&self, id: u32) -> bool {
        self.nodes[id as usize].edges.range().len() >= MANY_CONSUMERS
    }

    /// Returns the range of a node's data edges among all data edges of the plan.
    pub(super) fn edge_range(&self, node: &PlanNode) -> Range<usize> {
        node.edges.range()
    }

    pub(super) fn successors(&self, node: &PlanNode) -> &[Successor] {
        &self.successors[node.successors.range()]
    }

    fn const_inputs(&self, node: &PlanNode) -> &[ConstInput] {
        &self.const_inputs[node.const_inputs.range()]
    }

    /// Returns whether `slot` takes a reference itself, not the value behind it.
    pub(super) fn takes_ref(&self, slot: usize) -> bool {
        self.takes_ref[slot]
    }

    /// Returns the node and the output that feed `slot`.
    pub(super) fn producer(&self, slot: usize) -> (u32, u32) {
        let SlotSource { node, output } = self.producers[slot];
        (node, output)
    }

    /// Returns the name of the output that feeds `slot`: `node` for output 0, else `node:index`.
    pub(super) fn input_name(&self, slot: usize) -> String {
        let SlotSource { node, output } = self.producers[slot];
        let name = &self.nodes[node as usize].node.name;
        if output == 0 { name.to_string() } else { format!("{name}:{output}") }
    }

    /// Returns the node as text: `name = Op(input, other:1, ^control)`.
    pub(super) fn label(&self, id: u32) -> String {
        let PlanNode { node, slots, .. } = &self.nodes[id as usize];
        let mut inputs: Vec<String> = slots.range().map(|slot| self.input_name(slot)).collect();
        let first = self.controls.partition_point(|&(_, to)| to < id);
        let controls = self.controls[first..].iter().take_while(|&&(_, to)| to == id);
        inputs.extend(controls.map(|&(from, _)| format!("^{}", self.nodes[from as usize].node.name)));
        format!("{} = {}({})", node.name, node.op.name(), inputs.join(", "))
    }

    /// Returns the outputs of a constant node; empty for any other node.
    pub(super) fn constants_of(&self, id: u32) -> &[Value] {
        let first = self.constant_of[id as usize] as usize;
        let count = self.nodes[id as usize].outputs as usize;
        self.constants.get(first..first + count).unwrap_or_default()
    }

    /// Returns the memory that the value at `slot` must be in.
    pub(super) fn required_memory(&self, slot: usize) -> RequiredMemory {
        self.required_memory.get(slot).copied().unwrap_or(RequiredMemory::Any)
    }

    pub(super) fn has_own_memory(&self) -> bool {
        !self.required_memory.is_empty()
    }
}

/// Returns whether the node sends its input to the client. If the input is a reference, the client gets the variable's
/// value at the end of the step, as clients of TensorFlow expect, even if nodes of the step write the variable.
fn is_fetch(node: &Node) -> bool {
    node.op.role() == Role::Send && node.attr::<bool>("client_terminated").unwrap_or(false)
}

/// Returns for each node whether it passes on a reference that it receives. A node does so only if all its consumers
/// read the value when they run; a value that goes through a loop or a Switch is dereferenced.
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
