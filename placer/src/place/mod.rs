//! The placer, which assigns a device to each node of a graph by TensorFlow's rules and with its error
//! messages.
//!
//! Nodes that are connected by references, resources or `_class` share a device. The first candidate device
//! of such a group is chosen, in the order of kernel priority, device type, local process and name. A node
//! without inputs is placed with its consumers, and a node that only reads a tensor's shape with its input.
//! Load is not balanced.

mod candidates;
mod groups;
mod kernels;
mod message;

pub use kernels::Kernels;

use crate::device_set::DeviceSet;
use crate::error::{Error, Result};
use crate::spec::{DeviceTexts, Specs};
use candidates::Candidates;
use graph::{DeviceName, DeviceSpec, Graph, NodeId, Topology};
use groups::{Constraint, Groups, NONE};
use kernels::Signatures;
use std::fmt;
use std::sync::Arc;

/// The inputs of a placement besides the graph.
#[derive(Clone, Copy)]
pub struct PlaceRequest<'a> {
    pub devices: &'a DeviceSet,
    pub kernels: &'a dyn Kernels,
    /// True if a missing device type or number and an impossible colocation are tolerated instead of reported
    /// as errors.
    pub allow_soft_placement: bool,
    /// Nodes that keep the device of an earlier placement.
    pub assigned: &'a [(NodeId, DeviceName)],
}

impl fmt::Debug for PlaceRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlaceRequest { devices, allow_soft_placement, assigned, .. } = self;
        f.debug_struct("PlaceRequest")
            .field("devices", devices)
            .field("allow_soft_placement", allow_soft_placement)
            .field("assigned", assigned)
            .finish_non_exhaustive()
    }
}

/// The rule that decided the device of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The device satisfies the node's device specification.
    Explicit,
    /// The node's `_class` colocates it with a group; the node with this id decided the group's device.
    Colocated(NodeId),
    /// A reference or resource edge connects the node to a group; the node with this id decided the group's device.
    Resource(NodeId),
    /// An earlier placement assigned the device.
    Assigned,
    /// The requested device does not exist, and soft placement chose the closest one.
    Soft,
    /// The node has no inputs, and all its consumers are on the device of this consumer.
    Consumer(NodeId),
    /// The node only reads the shape of this input and is placed with it.
    Input(NodeId),
    /// The first device that has a kernel for the node.
    Default,
}

/// The device of each node of a graph, with the rule that decided it.
#[derive(Clone, Debug)]
pub struct Placement {
    devices: Vec<Arc<str>>,
    of_node: Vec<u32>,
    reasons: Vec<Reason>,
    /// Warnings for the user about requests that could not be met.
    pub warnings: Vec<String>,
}

impl Placement {
    /// Returns the device of each node as an index into the [`DeviceSet`] of the placement.
    pub fn indices(&self) -> &[u32] {
        &self.of_node
    }

    /// Returns the full name of a node's device.
    pub fn device(&self, id: NodeId) -> &Arc<str> {
        &self.devices[self.of_node[id.index()] as usize]
    }

    /// Returns the rule that decided a node's device.
    pub fn reason(&self, id: NodeId) -> Reason {
        self.reasons[id.index()]
    }

    /// Writes each node's full device name into `graph`, which must be the graph that was placed.
    pub fn apply(&self, graph: &mut Graph) {
        for (index, &device) in self.of_node.iter().enumerate() {
            graph.node_mut(NodeId::new(index)).device = self.devices[device as usize].clone();
        }
    }

    /// Returns one line for each node in TensorFlow's log format, followed by the rule that decided the
    /// node's device.
    pub fn log<'a>(&'a self, graph: &'a Graph) -> impl Iterator<Item = String> + 'a {
        graph.nodes().zip(&self.reasons).map(move |((id, node), &reason)| {
            let name = |id: NodeId| &graph.node(id).name;
            let rule = match reason {
                Reason::Explicit => "as requested".to_owned(),
                Reason::Colocated(with) => format!("colocated with {}", name(with)),
                Reason::Resource(with) => format!("shares state with {}", name(with)),
                Reason::Assigned => "placed before".to_owned(),
                Reason::Soft => "soft placement".to_owned(),
                Reason::Consumer(to) => format!("where its consumer {} is", name(to)),
                Reason::Input(from) => format!("where its input {} is", name(from)),
                Reason::Default => "default".to_owned(),
            };
            format!("{}: ({}): {} [{rule}]", node.name, node.op.name(), self.device(id))
        })
    }
}

/// Places every node of a graph.
///
/// # Errors
/// TensorFlow's errors, with its codes and messages: a node without a kernel, a device that does not exist,
/// or device specifications that contradict each other.
pub fn place(graph: &Graph, request: &PlaceRequest<'_>) -> Result<Placement> {
    if request.devices.is_empty() {
        return Err(Error::NoDevices);
    }
    let topology = Topology::new(graph);
    let mut placing = Placing::start(graph, &topology, request)?;
    let mut generators = Vec::new();
    for id in graph.ids() {
        if placing.of_node[id.index()] != NONE {
            continue;
        }
        if placing.traits[id.index()] & GENERATOR != 0 {
            generators.push(id);
        } else {
            placing.place_node(id)?;
        }
    }
    for id in generators {
        placing.place_generator(id)?;
    }
    Ok(Placement {
        devices: request.devices.iter().map(|d| d.text.clone()).collect(),
        of_node: placing.of_node,
        reasons: placing.reasons,
        warnings: placing.candidates.warnings,
    })
}

/// Bit of `traits`: the node has no data input and exactly one output, which is not a reference.
const GENERATOR: u8 = 1;
/// Bit of `traits`: an input may be a reference or a resource.
const TAKES_STATE: u8 = 2;

/// The state of a placement: the graph, its colocation groups, and the devices decided so far.
struct Placing<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    groups: Groups<'a>,
    candidates: Candidates<'a>,
    traits: Vec<u8>,
    of_node: Vec<u32>,
    reasons: Vec<Reason>,
    /// For each group root, the member that was placed first.
    decider: Vec<u32>,
}

impl<'a> Placing<'a> {
    /// Reads the device specification of each node and joins the nodes that must share a device.
    fn start(graph: &'a Graph, topology: &'a Topology, request: &PlaceRequest<'a>) -> Result<Placing<'a>> {
        let soft = request.allow_soft_placement;
        let signatures = Signatures::new(request.kernels, request.devices);
        let mut placing = Placing {
            graph,
            topology,
            groups: Groups::new(graph, request.devices, Specs::new(), signatures, soft),
            candidates: Candidates::new(request.devices, request.kernels, soft),
            traits: vec![0; graph.len()],
            of_node: vec![NONE; graph.len()],
            reasons: vec![Reason::Default; graph.len()],
            decider: vec![NONE; graph.len()],
        };
        for (id, name) in request.assigned {
            let unknown = || Error::AssignedDevice {
                node: graph.node(*id).name.to_string(),
                device: name.to_string(),
                devices: request.devices.names(),
            };
            placing.of_node[id.index()] = request.devices.find(name).ok_or_else(unknown)?;
            placing.reasons[id.index()] = Reason::Assigned;
        }
        let mut texts = DeviceTexts::new();
        for id in graph.ids() {
            placing.read_node(id, &mut texts)?;
        }
        for id in graph.ids() {
            if placing.traits[id.index()] & TAKES_STATE != 0 {
                placing.groups.join_edges(id, topology)?;
            }
        }
        placing.groups.join_classes()?;
        Ok(placing)
    }

    /// Reads a node's device specification and kernels into a new group that has this node only.
    fn read_node(&mut self, id: NodeId, texts: &mut DeviceTexts<(u32, bool)>) -> Result<()> {
        let node = self.graph.node(id);
        let groups = &mut self.groups;
        let (own, is_remote) = texts.of(self.graph, id, |text| {
            let spec = DeviceSpec::parse(text).map_err(|e| e.at_node(&node.name))?;
            let is_remote = groups.devices.is_remote(&spec);
            Ok((groups.specs.intern(spec), is_remote))
        })?;
        let signature = groups.signatures.of(node)?;
        let types = if is_remote { groups.signatures.with_remote(signature.types) } else { signature.types };
        let has_inputs = self.topology.producers(id).first().is_some_and(|p| !p.is_control());
        let mut constraint = Constraint { requested: own, resource: 0, device: NONE, types, requester: NONE };
        if own != 0 {
            constraint.requester = id.index() as u32;
        }
        let device = self.of_node[id.index()];
        if device != NONE {
            let held = groups.devices.get(device);
            if groups.signatures.types(types).iter().all(|t| t.0 != held.type_index)
                && groups.devices.is_local(device)
            {
                return Err(Error::AssignedKernel {
                    node: node.name.to_string(),
                    device: held.text.to_string(),
                    op: node.op.name().to_owned(),
                });
            }
            constraint.device = device;
            constraint.requested = groups.specs.intern(held.name.to_spec());
            constraint.requester = id.index() as u32;
        } else if groups.signatures.types(types).is_empty() {
            return Err(self.candidates.no_kernel(node));
        } else if own != 0 && !has_inputs && signature.outputs.is_state() {
            constraint.resource = own;
        }
        groups.constraints.push(constraint);
        groups.own.push(own);
        if signature.takes_state {
            self.traits[id.index()] |= TAKES_STATE;
        }
        if !has_inputs && signature.outputs.is_one_value() {
            self.traits[id.index()] |= GENERATOR;
        }
        Ok(())
    }

    fn place_node(&mut self, id: NodeId) -> Result<()> {
        let followed = if self.graph.node(id).op.def.traits.metadata {
            self.topology.producers(id).first().map(|p| (p.node, Reason::Input(p.node)))
        } else {
            None
        };
        self.choose(id, followed)
    }

    /// Places a node without inputs on the device of its consumers, if they share one.
    fn place_generator(&mut self, id: NodeId) -> Result<()> {
        let consumers = self.topology.consumers(id);
        let followed = consumers.first().and_then(|first| {
            let device = self.of_node[first.node.index()];
            let together = consumers.iter().all(|c| self.of_node[c.node.index()] == device);
            together.then_some((first.node, Reason::Consumer(first.node)))
        });
        self.choose(id, followed)
    }

    /// Places a node on its group's device if the group has one; otherwise on the device of the node `followed`, if the
    /// group may be placed there; otherwise on the group's preferred device.
    fn choose(&mut self, id: NodeId, followed: Option<(NodeId, Reason)>) -> Result<()> {
        let root = self.groups.root(id);
        let constraint = self.groups.constraints[root];
        let own = self.groups.own[id.index()];
        if constraint.device != NONE {
            let with = if constraint.requester != NONE { constraint.requester } else { self.decider[root] };
            self.assign(id, constraint.device, self.member_reason(id, own, constraint.device, with));
            return Ok(());
        }
        let allowed = self.candidates.for_group(&mut self.groups, id, root)?;
        let mut device = self.candidates.first(allowed);
        let mut reason = if own == 0 && constraint.requester == NONE {
            Reason::Default
        } else {
            self.member_reason(id, own, device, constraint.requester)
        };
        if let Some((node, rule)) = followed
            && self.of_node[node.index()] != NONE
            && self.candidates.has(allowed, self.of_node[node.index()])
        {
            device = self.of_node[node.index()];
            if reason == Reason::Default {
                reason = rule;
            }
        }
        self.groups.constraints[root].device = device;
        self.decider[root] = id.index() as u32;
        self.assign(id, device, reason);
        Ok(())
    }

    /// Returns the rule that explains why a member of a group is on the group's device; `with` is the node that decided
    /// the device.
    fn member_reason(&self, id: NodeId, own: u32, device: u32, with: u32) -> Reason {
        if own != 0 && self.groups.specs.get(own).matches(&self.groups.devices.get(device).name) {
            return Reason::Explicit;
        }
        if with == NONE || with as usize == id.index() {
            return if own != 0 { Reason::Soft } else { Reason::Default };
        }
        let with = NodeId::new(with as usize);
        if self.groups.on_edge[id.index()] { Reason::Resource(with) } else { Reason::Colocated(with) }
    }

    fn assign(&mut self, id: NodeId, device: u32, reason: Reason) {
        self.of_node[id.index()] = device;
        self.reasons[id.index()] = reason;
    }
}
