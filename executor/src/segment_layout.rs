//! The layout of a plan's segments: the properties of its nodes from which segments are selected, and the inputs and
//! outputs of each segment.

use super::action::{Action, RequiredMemory, port_memories};
use super::availability::{Availabilities, AvailableAt};
use super::frame_plan::FrameAssignment;
use super::plan::Plan;
use super::segment::{Delivery, DeliveryTarget, Segment, SegmentInput, SegmentKernel};
use super::segment_selection::{self, NodeProperties};
use device::Device;
use device::Result;
use device::kernel::Kernel;
use device::segment_runner::{Access, CaptureClass, SegmentInfo};
use device::value::Value;
use graph::{DType, Graph, Node, NodeId, Role, Topology};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// The units of scheduling: nodes and segments. The numbers of segments follow those of nodes.
pub(super) struct Units {
    nodes: u32,
    segments: Vec<Vec<u32>>,
    /// The unit number of each node's segment, or the node's own number; empty if there are no segments.
    unit_of: Vec<u32>,
}

impl Units {
    pub(super) fn new(nodes: usize, segments: Vec<Vec<u32>>) -> Units {
        let nodes = nodes as u32;
        let mut unit_of = Vec::new();
        if !segments.is_empty() {
            unit_of.extend(0..nodes);
        }
        for (unit, members) in (nodes..).zip(&segments) {
            members.iter().for_each(|&node| unit_of[node as usize] = unit);
        }
        Units { nodes, segments, unit_of }
    }

    /// Returns the unit that a node belongs to.
    pub(super) fn of(&self, node: u32) -> u32 {
        self.unit_of.get(node as usize).copied().unwrap_or(node)
    }

    /// Returns the numbers of all units: of the nodes outside segments, then of the segments.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        (0..self.nodes).filter(|&node| self.of(node) == node).chain(self.segments())
    }

    /// Returns the nodes of a unit: those of the segment, or the single node.
    pub(super) fn nodes(&self, unit: u32) -> SmallVec<[u32; 1]> {
        match unit.checked_sub(self.nodes).and_then(|number| self.segments.get(number as usize)) {
            Some(nodes) => SmallVec::from_slice(nodes),
            None => SmallVec::from_slice(&[unit]),
        }
    }

    /// Returns the unit numbers of the segments.
    pub(super) fn segments(&self) -> Range<u32> {
        self.nodes..self.nodes + self.segments.len() as u32
    }

    /// Returns the first node of each segment.
    pub(super) fn firsts(&self) -> impl Iterator<Item = u32> {
        self.segments.iter().filter_map(|nodes| nodes.first().copied())
    }
}

/// Returns the segments of a partition, each as a list of node numbers. A segment is a group of kernels that are
/// scheduled together, so that the device can capture the work that they enqueue and replay it as one graph. A node
/// whose kernel must not be captured ([`CaptureClass::Never`]) is in no segment.
pub(super) fn find(
    plan: &Plan,
    graph: &Graph,
    topology: &Topology,
    frames: Option<&FrameAssignment>,
    device: &Arc<Device>,
) -> Result<Vec<Vec<u32>>> {
    let mut memories = Vec::with_capacity(graph.len());
    for (_, node) in graph.nodes() {
        memories.push(port_memories(device, node, &node.op.outputs, &node.output_types()?)?);
    }
    let order = topology.order(graph)?;
    let availabilities = Availabilities::new(graph, topology, frames, &order);
    let (mut properties, mut waits) = (Vec::with_capacity(graph.len()), Vec::with_capacity(graph.len()));
    for (id, node) in graph.nodes() {
        properties.push(node_properties(plan, id, node, &memories, &availabilities, device)?);
        // A consumer of a NextIteration does not wait for the NextIteration, because the value was computed in the
        // previous iteration.
        let before = topology.producers(id).iter().map(|edge| edge.node);
        let before = before.filter(|&node| graph.node(node).op.role() != Role::NextIteration);
        waits.push(before.map(|node| node.index() as u32).collect::<SmallVec<[u32; 4]>>());
    }
    let order: Vec<u32> = order.into_iter().map(|id| id.index() as u32).collect();
    Ok(segment_selection::find(&order, &waits, &properties, availabilities.implied))
}

fn node_properties(
    plan: &Plan,
    id: NodeId,
    node: &Node,
    memories: &[Vec<RequiredMemory>],
    availabilities: &Availabilities,
    device: &Arc<Device>,
) -> Result<NodeProperties> {
    let planned = &plan.nodes[id.index()];
    let inputs = node.input_types()?;
    let capture = match &planned.action {
        Action::Kernel(kernel) if matches!(**kernel, Kernel::Sync(_)) => {
            device.find_kernel(node).map_or(CaptureClass::Never, |def| def.capture)
        }
        _ => CaptureClass::Never,
    };
    let availability = &availabilities.by_node[id.index()];
    let waits_elsewhere = match &planned.action {
        Action::Kernel(kernel) => matches!(**kernel, Kernel::Async(_)),
        _ => matches!(
            availability.at,
            AvailableAt::Received | AvailableAt::NextIteration | AvailableAt::LoopBoundary
        ),
    };
    let (mut needs_transfer, mut can_join) = (waits_elsewhere, true);
    for (slot, port) in plan.slots(planned).zip(&inputs) {
        let required = plan.required_memory(slot);
        let (from, output) = plan.producer(slot);
        // A captured graph is replayed only for the same input values. Values that are objects cannot be compared,
        // except resource handles, which are compared by the objects behind them.
        can_join &= port.dtype.size().is_some() || port.dtype == DType::Resource;
        if planned.has_refs && !plan.takes_ref(slot) {
            // The value behind a reference is in device memory, and host kernels cannot dereference it.
            can_join &= required != RequiredMemory::Host;
        }
        match plan.constants_of(from).get(output as usize) {
            Some(Value::Host(_)) => can_join &= required != RequiredMemory::Device,
            Some(_) => can_join &= required != RequiredMemory::Host,
            None if port.is_ref || required == RequiredMemory::Any => {}
            // A fed value is copied to the device when the step starts; kernels that read it are enqueued without
            // waiting.
            None if availabilities.by_node[from as usize].at == AvailableAt::AtStart
                && required == RequiredMemory::Device => {}
            None => {
                // The value of a control-flow op may be in either memory, but is usually in the required memory.
                let memory = memories[from as usize].get(output as usize);
                needs_transfer |=
                    memory.is_none_or(|memory| *memory != required && *memory != RequiredMemory::Any);
            }
        }
    }
    let is_fetch = || node.attr::<bool>("client_terminated").unwrap_or(false);
    let is_constant = matches!(planned.action, Action::Constant);
    Ok(NodeProperties {
        may_join: capture != CaptureClass::Never && can_join && !is_constant && !availability.is_conditional,
        capture,
        needs_transfer,
        runs_if_dead: match node.op.role() {
            Role::Compute => false,
            Role::ControlTrigger | Role::Merge => true,
            // A fed value is never dead.
            _ => matches!(availability.at, AvailableAt::Received | AvailableAt::LoopBoundary),
        },
        is_received: availability.at != AvailableAt::Computed,
        group: availability.group,
        is_loop_boundary: availability.at == AvailableAt::LoopBoundary,
        frame: availability.frame,
        sends: node.op.role() == Role::Send && !is_fetch(),
    })
}

/// Returns a segment, and for each output of the segment the slots that the output feeds.
pub(super) fn segment(
    plan: &Plan,
    units: &Units,
    unit: u32,
    device: &Arc<Device>,
) -> Result<(Segment, Vec<SmallVec<[u32; 2]>>)> {
    let nodes = units.nodes(unit);
    let slots_of = |&id: &u32| plan.slots(&plan.nodes[id as usize]);
    let inner: FxHashSet<usize> = nodes.iter().flat_map(slots_of).collect();
    let inputs = inputs(plan, units, unit, device)?;
    let mut outputs = Vec::new();
    let kernels = nodes
        .iter()
        .map(|&node| SegmentKernel { node, deliveries: deliveries(plan, node, &inner, &mut outputs) });
    let kernels: Vec<SegmentKernel> = kernels.collect();
    let name = nodes.first().map(|&id| plan.nodes[id as usize].node.name.clone()).unwrap_or_default();
    let accesses = inputs.iter().map(|input| input.access).collect();
    let capture_of = |&id: &u32| device.find_kernel(&plan.nodes[id as usize].node).map(|def| def.capture);
    let works = nodes.iter().filter_map(capture_of).filter(|capture| capture.works()).count();
    let info = SegmentInfo { name, kernels: kernels.len(), works, inputs: accesses };
    let runner = device.processor().segment_runner(info)?;
    Ok((Segment { kernels, inputs, outputs: outputs.len(), runner }, outputs))
}

/// Returns the inputs of a segment. A value from outside the segment is one input for each memory in which kernels
/// require it.
fn inputs(plan: &Plan, units: &Units, unit: u32, device: &Arc<Device>) -> Result<Vec<SegmentInput>> {
    let mut inputs: Vec<SegmentInput> = Vec::new();
    let mut numbers = FxHashMap::default();
    for &id in &*units.nodes(unit) {
        let planned = &plan.nodes[id as usize];
        let updates = device.find_kernel(&planned.node).is_some_and(|def| def.capture.changes());
        // Consumers of a reference or handle that this node outputs may change the variable.
        let passes_on_variable =
            planned.node.output_types()?.iter().any(|port| port.is_ref || port.dtype == DType::Resource);
        let access = if updates || passes_on_variable { Access::Changes } else { Access::Reads };
        for slot in plan.slots(planned) {
            let source = plan.producer(slot);
            if units.of(source.0) == unit || !plan.constants_of(source.0).is_empty() {
                continue;
            }
            let number = *numbers.entry((source, plan.required_memory(slot))).or_insert(inputs.len());
            if number == inputs.len() {
                inputs.push(SegmentInput { slots: SmallVec::new(), access });
            }
            let input = &mut inputs[number];
            input.slots.push(slot as u32);
            input.access = input.access.max(access);
        }
    }
    Ok(inputs)
}

/// Returns the deliveries of a node's outputs. Outputs that leave the segment are added to `outputs`.
fn deliveries(
    plan: &Plan,
    node: u32,
    inner: &FxHashSet<usize>,
    outputs: &mut Vec<SmallVec<[u32; 2]>>,
) -> SmallVec<[Delivery; 2]> {
    let mut deliveries: SmallVec<[Delivery; 2]> = SmallVec::new();
    for edge in plan.edges(&plan.nodes[node as usize]) {
        let to = if inner.contains(&(edge.slot as usize)) {
            DeliveryTarget::Slot(edge.slot)
        } else {
            let leaves = deliveries.iter().find_map(|delivery| delivery.leaves_as(edge.output));
            let number = leaves.unwrap_or(outputs.len() as u32);
            if leaves.is_none() {
                outputs.push(SmallVec::new());
            }
            outputs[number as usize].push(edge.slot);
            if leaves.is_some() {
                continue;
            }
            DeliveryTarget::Outside(number)
        };
        if let Some(last) = deliveries.last_mut() {
            last.is_last = last.output != edge.output;
        }
        deliveries.push(Delivery { output: edge.output, to, is_last: true });
    }
    deliveries
}
