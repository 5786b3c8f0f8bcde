//! A plan's segments laid out: what is known of its nodes for the decision, and what each segment takes and gives.

use super::action::{Action, Wanted, memories};
use super::arrivals::{Arrivals, When};
use super::frame_plan::Frames;
use super::plan::Plan;
use super::segment::{Delivery, Input, Member, Segment, To};
use super::segments::{self, Part};
use device::Device;
use device::Result;
use device::kernel::Kernel;
use device::repeat::{Access, Capture, SegmentInfo};
use device::value::Value;
use graph::{DType, Graph, Node, NodeId, Role, Topology};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// What is scheduled: nodes, and segments, which are numbered behind the nodes.
pub(super) struct Units {
    nodes: u32,
    segments: Vec<Vec<u32>>,
    /// By node: its segment, or itself; empty without segments.
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

    /// The unit that a node is scheduled with.
    pub(super) fn of(&self, node: u32) -> u32 {
        self.unit_of.get(node as usize).copied().unwrap_or(node)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        (0..self.nodes).filter(|&node| self.of(node) == node).chain(self.segments())
    }

    /// The nodes of a unit.
    pub(super) fn nodes(&self, unit: u32) -> SmallVec<[u32; 1]> {
        match unit.checked_sub(self.nodes).and_then(|number| self.segments.get(number as usize)) {
            Some(nodes) => SmallVec::from_slice(nodes),
            None => SmallVec::from_slice(&[unit]),
        }
    }

    /// The segments' numbers.
    pub(super) fn segments(&self) -> Range<u32> {
        self.nodes..self.nodes + self.segments.len() as u32
    }

    /// The first node of each segment.
    pub(super) fn firsts(&self) -> impl Iterator<Item = u32> {
        self.segments.iter().filter_map(|nodes| nodes.first().copied())
    }
}

/// The segments of a partition, by what its kernels' rows say.
pub(super) fn find(
    plan: &Plan,
    graph: &Graph,
    topology: &Topology,
    frames: Option<&Frames>,
    device: &Arc<Device>,
) -> Result<Vec<Vec<u32>>> {
    let mut given = Vec::with_capacity(graph.len());
    for (_, node) in graph.nodes() {
        given.push(memories(device, node, &node.op.outputs, &node.output_types()?)?);
    }
    let order = topology.order(graph)?;
    let arrivals = Arrivals::new(graph, topology, frames, &order);
    let (mut parts, mut waits) = (Vec::with_capacity(graph.len()), Vec::with_capacity(graph.len()));
    for (id, node) in graph.nodes() {
        parts.push(part(plan, id, node, &given, &arrivals, device)?);
        // What comes around in a loop was made a turn ago.
        let before = topology.producers(id).iter().map(|edge| edge.node);
        let before = before.filter(|&node| graph.node(node).op.role() != Role::NextIteration);
        waits.push(before.map(|node| node.index() as u32).collect::<SmallVec<[u32; 4]>>());
    }
    let order: Vec<u32> = order.into_iter().map(|id| id.index() as u32).collect();
    Ok(segments::find(&order, &waits, &parts, arrivals.implied))
}

fn part(
    plan: &Plan,
    id: NodeId,
    node: &Node,
    given: &[Vec<Wanted>],
    arrivals: &Arrivals,
    device: &Arc<Device>,
) -> Result<Part> {
    let planned = &plan.nodes[id.index()];
    let inputs = node.input_types()?;
    let capture = match &planned.action {
        Action::Kernel(kernel) if matches!(**kernel, Kernel::Sync(_)) => {
            device.find_kernel(node).map_or(Capture::Never, |def| def.capture)
        }
        _ => Capture::Never,
    };
    let arrival = &arrivals.of[id.index()];
    let waits_elsewhere = match &planned.action {
        Action::Kernel(kernel) => matches!(**kernel, Kernel::Async(_)),
        _ => matches!(arrival.when, When::Received | When::Turn | When::Gate),
    };
    let (mut is_brought, mut fits) = (waits_elsewhere, true);
    for (slot, port) in plan.slots(planned).zip(&inputs) {
        let wanted = plan.wanted(slot);
        let (from, output) = plan.source(slot);
        // Of objects nobody can say that they are those of the last time, but of handles by what they lead to.
        fits &= port.dtype.size().is_some() || port.dtype == DType::Resource;
        if planned.has_refs && !plan.takes_ref(slot) {
            // What is behind a reference is in the device's memory, where kernels of the host do not look for it.
            fits &= wanted != Wanted::Host;
        }
        match plan.constants_of(from).get(output as usize) {
            Some(Value::Host(_)) => fits &= wanted != Wanted::Own,
            Some(_) => fits &= wanted != Wanted::Host,
            None if port.is_ref || wanted == Wanted::Any => {}
            // It is brought as soon as it is there: who enqueues that does not wait.
            None if arrivals.of[from as usize].when == When::AtStart && wanted == Wanted::Own => {}
            None => {
                // What steers has its value where that is wanted as a rule.
                let given = given[from as usize].get(output as usize);
                is_brought |= given.is_none_or(|given| *given != wanted && *given != Wanted::Any);
            }
        }
    }
    let is_fetch = || node.attr::<bool>("client_terminated").unwrap_or(false);
    let is_constant = matches!(planned.action, Action::Constant);
    Ok(Part {
        may_join: capture != Capture::Never && fits && !is_constant && !arrival.is_conditional,
        capture,
        is_brought,
        runs_anyway: match node.op.role() {
            Role::Compute => false,
            Role::ControlTrigger | Role::Merge => true,
            // What is fed is never dead.
            _ => matches!(arrival.when, When::Received | When::Gate),
        },
        arrives: arrival.when != When::Computed,
        ends_with: arrival.with,
        is_gate: arrival.when == When::Gate,
        frame: arrival.frame,
        sends: node.op.role() == Role::Send && !is_fetch(),
    })
}

/// A segment, and by output of it the slots of who takes that.
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
    let kernels =
        nodes.iter().map(|&node| Member { node, deliveries: deliveries(plan, node, &inner, &mut outputs) });
    let kernels: Vec<Member> = kernels.collect();
    let name = nodes.first().map(|&id| plan.nodes[id as usize].node.name.clone()).unwrap_or_default();
    let accesses = inputs.iter().map(|input| input.access).collect();
    let capture_of = |&id: &u32| device.find_kernel(&plan.nodes[id as usize].node).map(|def| def.capture);
    let works = nodes.iter().filter_map(capture_of).filter(|capture| capture.works()).count();
    let info = SegmentInfo { name, kernels: kernels.len(), works, inputs: accesses };
    let repeater = device.processor().repeater(info)?;
    Ok((Segment { kernels, inputs, outputs: outputs.len(), repeater }, outputs))
}

/// What comes from outside: each value once for each memory that it is wanted in, whoever takes it.
fn inputs(plan: &Plan, units: &Units, unit: u32, device: &Arc<Device>) -> Result<Vec<Input>> {
    let mut inputs: Vec<Input> = Vec::new();
    let mut numbers = FxHashMap::default();
    for &id in &*units.nodes(unit) {
        let planned = &plan.nodes[id as usize];
        let updates = device.find_kernel(&planned.node).is_some_and(|def| def.capture.changes());
        // Who is given a reference or a handle by this node may change what is behind it.
        let hands_on =
            planned.node.output_types()?.iter().any(|port| port.is_ref || port.dtype == DType::Resource);
        let access = if updates || hands_on { Access::Changes } else { Access::Reads };
        for slot in plan.slots(planned) {
            let source = plan.source(slot);
            if units.of(source.0) == unit || !plan.constants_of(source.0).is_empty() {
                continue;
            }
            let number = *numbers.entry((source, plan.wanted(slot))).or_insert(inputs.len());
            if number == inputs.len() {
                inputs.push(Input { slots: SmallVec::new(), access });
            }
            let input = &mut inputs[number];
            input.slots.push(slot as u32);
            input.access = input.access.max(access);
        }
    }
    Ok(inputs)
}

/// Where a node's outputs go; those that leave the segment become outputs of it.
fn deliveries(
    plan: &Plan,
    node: u32,
    inner: &FxHashSet<usize>,
    outputs: &mut Vec<SmallVec<[u32; 2]>>,
) -> SmallVec<[Delivery; 2]> {
    let mut deliveries: SmallVec<[Delivery; 2]> = SmallVec::new();
    for edge in plan.edges(&plan.nodes[node as usize]) {
        let to = if inner.contains(&(edge.slot as usize)) {
            To::Slot(edge.slot)
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
            To::Outside(number)
        };
        if let Some(last) = deliveries.last_mut() {
            last.is_last = last.output != edge.output;
        }
        deliveries.push(Delivery { output: edge.output, to, is_last: true });
    }
    deliveries
}
