//! The placer: which device each node of a graph goes to. The rules are TensorFlow's, and its messages.
//!
//! Nodes tied by references, resources or `_class` share a device. Of the devices that such a group allows the
//! first one is taken, by kernel priority, device type, own process, name; nodes without inputs follow their
//! consumers, and nodes that only ask for a shape follow their input. There is no balancing of load.

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
use groups::{Groups, NONE, Wish};
use kernels::Signatures;
use std::fmt;
use std::sync::Arc;

/// What a placement is made from, beside the graph.
#[derive(Clone, Copy)]
pub struct PlaceRequest<'a> {
    pub devices: &'a DeviceSet,
    pub kernels: &'a dyn Kernels,
    /// Whether a device type or number that is not there, and a colocation that cannot be, are no errors.
    pub allow_soft_placement: bool,
    /// Nodes that stay where an earlier placement put them.
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

/// The rule that decided where a node goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It asked for a device that this one satisfies.
    Explicit,
    /// Its `_class` ties it to a group for which this node decided.
    Colocated(NodeId),
    /// A reference or resource ties it to a group for which this node decided.
    Resource(NodeId),
    /// An earlier placement put it there.
    Assigned,
    /// What it asked for is not there; this comes closest.
    Soft,
    /// It has no inputs, and all that it feeds is where this node is.
    Consumer(NodeId),
    /// It only asks for a shape, and goes where its input is.
    Input(NodeId),
    /// The first device that can run it.
    Default,
}

/// A device for each node of a graph.
#[derive(Clone, Debug)]
pub struct Placement {
    devices: Vec<Arc<str>>,
    of_node: Vec<u32>,
    reasons: Vec<Reason>,
    /// What the user should know of, though it is no failure.
    pub warnings: Vec<String>,
}

impl Placement {
    /// The device of each node, as an index into the set that the graph was placed on.
    pub fn indices(&self) -> &[u32] {
        &self.of_node
    }

    pub fn device(&self, id: NodeId) -> &Arc<str> {
        &self.devices[self.of_node[id.index()] as usize]
    }

    pub fn reason(&self, id: NodeId) -> Reason {
        self.reasons[id.index()]
    }

    /// Writes each node's full device name into the graph that was placed.
    pub fn apply(&self, graph: &mut Graph) {
        for (index, &device) in self.of_node.iter().enumerate() {
            graph.node_mut(NodeId::new(index)).device = self.devices[device as usize].clone();
        }
    }

    /// One line a node, in TensorFlow's form, with the rule that decided.
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
/// What TensorFlow's placer refuses, with its codes and messages: a node without a kernel, a device that is not
/// there, wishes that exclude each other.
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

/// No data inputs and one output that is no reference.
const GENERATOR: u8 = 1;
/// Some input may be a reference or a resource.
const LINKS: u8 = 2;

struct Placing<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    groups: Groups<'a>,
    candidates: Candidates<'a>,
    traits: Vec<u8>,
    of_node: Vec<u32>,
    reasons: Vec<Reason>,
    /// For each root, the member that was placed first.
    decider: Vec<u32>,
}

impl<'a> Placing<'a> {
    /// Reads what each node asks for and joins those that must share a device.
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
            if placing.traits[id.index()] & LINKS != 0 {
                placing.groups.join_edges(id, topology)?;
            }
        }
        placing.groups.join_classes()?;
        Ok(placing)
    }

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
        let mut wish = Wish { requested: own, resource: 0, device: NONE, types, requester: NONE };
        if own != 0 {
            wish.requester = id.index() as u32;
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
            wish.device = device;
            wish.requested = groups.specs.intern(held.name.to_spec());
            wish.requester = id.index() as u32;
        } else if groups.signatures.types(types).is_empty() {
            return Err(self.candidates.no_kernel(node));
        } else if own != 0 && !has_inputs && signature.outputs.is_state() {
            wish.resource = own;
        }
        groups.wishes.push(wish);
        groups.own.push(own);
        if signature.links {
            self.traits[id.index()] |= LINKS;
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

    fn place_generator(&mut self, id: NodeId) -> Result<()> {
        let consumers = self.topology.consumers(id);
        let followed = consumers.first().and_then(|first| {
            let device = self.of_node[first.node.index()];
            let together = consumers.iter().all(|c| self.of_node[c.node.index()] == device);
            together.then_some((first.node, Reason::Consumer(first.node)))
        });
        self.choose(id, followed)
    }

    /// Puts a node where its group is, else where `followed` is, if that is allowed, else on the first device
    /// that is.
    fn choose(&mut self, id: NodeId, followed: Option<(NodeId, Reason)>) -> Result<()> {
        let root = self.groups.root(id);
        let wish = self.groups.wishes[root];
        let own = self.groups.own[id.index()];
        if wish.device != NONE {
            let with = if wish.requester != NONE { wish.requester } else { self.decider[root] };
            self.settle(id, wish.device, self.member_reason(id, own, wish.device, with));
            return Ok(());
        }
        let allowed = self.candidates.of_group(&mut self.groups, id, root)?;
        let mut device = self.candidates.first(allowed);
        let mut reason = if own == 0 && wish.requester == NONE {
            Reason::Default
        } else {
            self.member_reason(id, own, device, wish.requester)
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
        self.groups.wishes[root].device = device;
        self.decider[root] = id.index() as u32;
        self.settle(id, device, reason);
        Ok(())
    }

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

    fn settle(&mut self, id: NodeId, device: u32, reason: Reason) {
        self.of_node[id.index()] = device;
        self.reasons[id.index()] = reason;
    }
}
