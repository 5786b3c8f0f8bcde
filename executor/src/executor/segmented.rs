//! A plan's segments laid out: what is known of its nodes for the decision, and what each segment takes and gives.

use super::action::{Action, Wanted, memories};
use super::plan::Plan;
use super::segment::{Delivery, Input, Member, Segment, To};
use super::segments::{self, Part};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::repeat::{Access, Capture, SegmentInfo};
use crate::value::Value;
use graph::{DType, Graph, Node, NodeId, Origin, Role, Topology};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
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
        let segments = self.nodes..self.nodes + self.segments.len() as u32;
        (0..self.nodes).filter(|&node| self.of(node) == node).chain(segments)
    }

    /// The nodes of a unit.
    pub(super) fn nodes(&self, unit: u32) -> SmallVec<[u32; 1]> {
        match unit.checked_sub(self.nodes).and_then(|number| self.segments.get(number as usize)) {
            Some(nodes) => SmallVec::from_slice(nodes),
            None => SmallVec::from_slice(&[unit]),
        }
    }

    /// The first node of each segment.
    pub(super) fn firsts(&self) -> impl Iterator<Item = u32> {
        self.segments.iter().filter_map(|nodes| nodes.first().copied())
    }
}

/// The segments of a partition without control flow, by what its kernels' rows say.
pub(super) fn find(
    plan: &Plan,
    graph: &Graph,
    topology: &Topology,
    device: &Arc<dyn Device>,
) -> Result<Vec<Vec<u32>>> {
    let mut given = Vec::with_capacity(graph.len());
    for (_, node) in graph.nodes() {
        given.push(memories(device, node, &node.op.outputs, &node.output_types()?)?);
    }
    let arrivals = Arrivals::of(graph);
    let (mut parts, mut waits) = (Vec::with_capacity(graph.len()), Vec::with_capacity(graph.len()));
    for (id, node) in graph.nodes() {
        parts.push(part(plan, id, node, &given, &arrivals, device)?);
        let before = topology.producers(id).iter().map(|edge| edge.node.index() as u32);
        waits.push(before.collect::<SmallVec<[u32; 4]>>());
    }
    let order: Vec<u32> = topology.order(graph)?.into_iter().map(|id| id.index() as u32).collect();
    Ok(segments::find(&order, &waits, &parts))
}

/// What is known of when the partition's receives end.
struct Arrivals {
    /// By node: the first of those that end when it does.
    with: Vec<u32>,
    /// By node: it receives what the step begins with.
    is_fed: Vec<bool>,
}

impl Arrivals {
    fn of(graph: &Graph) -> Arrivals {
        let mut of_origins = FxHashMap::<&str, u32>::default();
        let (mut with, mut is_fed) = (Vec::with_capacity(graph.len()), Vec::with_capacity(graph.len()));
        for (id, node) in graph.nodes() {
            let (id, origin) = (id.index() as u32, Origin::of(node));
            with.push(origin.map_or(id, |origin| *of_origins.entry(origin.node).or_insert(id)));
            is_fed.push(origin.is_some_and(|origin| origin.is_fed));
        }
        Arrivals { with, is_fed }
    }
}

fn part(
    plan: &Plan,
    id: NodeId,
    node: &Node,
    given: &[Vec<Wanted>],
    arrivals: &Arrivals,
    device: &Arc<dyn Device>,
) -> Result<Part> {
    let planned = &plan.nodes[id.index()];
    let inputs = node.input_types()?;
    let capture = match &planned.action {
        Action::Kernel(kernel) if matches!(**kernel, Kernel::Sync(_)) => {
            device.find_kernel(node).map_or(Capture::Never, |def| def.capture)
        }
        _ => Capture::Never,
    };
    let waits_elsewhere = match &planned.action {
        Action::Recv { .. } => !arrivals.is_fed[id.index()],
        Action::Kernel(kernel) => matches!(**kernel, Kernel::Async(_)),
        _ => false,
    };
    let (mut is_brought, mut fits) = (waits_elsewhere, true);
    for (slot, port) in plan.slots(planned).zip(&inputs) {
        let wanted = plan.wanted(slot);
        let (from, output) = plan.source(slot);
        if planned.has_refs && !plan.takes_ref(slot) {
            // What is behind a reference is in the device's memory, where kernels of the host do not look for it.
            fits &= wanted != Wanted::Host;
        }
        match plan.constants_of(from).get(output as usize) {
            Some(Value::Host(_)) => fits &= wanted != Wanted::Own,
            Some(_) => fits &= wanted != Wanted::Host,
            None if port.is_ref || wanted == Wanted::Any => {}
            // It is brought as soon as it is there: who enqueues that does not wait.
            None if arrivals.is_fed[from as usize] && wanted == Wanted::Own => {}
            None => is_brought |= given[from as usize].get(output as usize) != Some(&wanted),
        }
    }
    let is_fetch = || node.attr::<bool>("client_terminated").unwrap_or(false);
    Ok(Part {
        may_join: capture != Capture::Never && fits && !matches!(planned.action, Action::Constant),
        capture,
        is_brought,
        runs_anyway: match planned.action {
            // What is fed is never dead.
            Action::Recv { .. } => !arrivals.is_fed[id.index()],
            Action::Nothing => true,
            _ => false,
        },
        arrives: matches!(planned.action, Action::Recv { .. }),
        ends_with: arrivals.with[id.index()],
        sends: node.op.role() == Role::Send && !is_fetch(),
    })
}

/// Each segment with what it takes and gives.
pub(super) fn segments(plan: &Plan, units: &Units, device: &Arc<dyn Device>) -> Result<Vec<Segment>> {
    let first = units.nodes;
    (first..first + units.segments.len() as u32).map(|unit| segment(plan, units, unit, device)).collect()
}

fn segment(plan: &Plan, units: &Units, unit: u32, device: &Arc<dyn Device>) -> Result<Segment> {
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
    let info = SegmentInfo { name, kernels: kernels.len(), inputs: accesses };
    Ok(Segment { kernels, inputs, outputs, repeater: device.repeater(info)? })
}

/// What comes from outside: each value once, whoever takes it.
fn inputs(plan: &Plan, units: &Units, unit: u32, device: &Arc<dyn Device>) -> Result<Vec<Input>> {
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
            let number = *numbers.entry(source).or_insert(inputs.len());
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
