//! The partitioner: a placed graph becomes one graph a task or device, and what crosses between them a pair of
//! Send and Recv nodes.

mod loops;

use crate::device_set::DeviceSet;
use crate::error::{Error, Result};
use crate::spec::DeviceTexts;
use crate::transfer::{Key, Transfers};
use graph::{
    CONTROL, DType, DeviceName, Edge, Graph, Node, NodeId, Origin, Output, Producer, Role, TaskName, Topology,
};
use loops::Frames;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the parts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// One a task, as a master splits: a tensor crosses once to each task.
    Task,
    /// One a device, as a worker splits its part again.
    Device,
}

/// Names of the nodes that a split adds: `<source>_S<n>` of a master, `<source>_G<n>` of a worker. The numbers go
/// on from split to split: workers keep the kernels of stateful nodes by name for as long as a session lives, so
/// one name must not come back with another edge.
#[derive(Debug)]
pub struct Names {
    infix: &'static str,
    next: AtomicU64,
}

impl Names {
    /// For the splits of one session at its master.
    pub fn master() -> Names {
        Names { infix: "_S", next: AtomicU64::new(0) }
    }

    /// For the splits of one session at one worker.
    pub fn worker() -> Names {
        Names { infix: "_G", next: AtomicU64::new(0) }
    }

    /// A name that no split has given yet; `taken` says which ones the graph has.
    fn new_name(&self, source: &str, middle: &str, taken: impl Fn(&str) -> bool) -> String {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let name = [source, middle, self.infix, &number.to_string()].concat();
            if !taken(&name) {
                return name;
            }
        }
    }

    /// Whether a name is of the kind that splits give.
    fn may_give(&self, name: &str) -> bool {
        name.trim_end_matches(|c: char| c.is_ascii_digit()).ends_with(self.infix)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct PartitionOptions<'a> {
    /// The set whose indices the placement holds.
    pub devices: &'a DeviceSet,
    pub split: Split,
    pub names: &'a Names,
}

/// One part of a graph. Its nodes carry full device names.
#[derive(Clone, Debug)]
pub struct Partition {
    pub task: TaskName,
    /// With [`Split::Device`], the device.
    pub device: Option<DeviceName>,
    pub graph: Graph,
}

/// The device of each node of a graph whose nodes carry full device names.
///
/// # Errors
/// `InvalidArgument` if a node has none, or one that is not in the set.
pub fn placed_devices(graph: &Graph, devices: &DeviceSet) -> Result<Vec<u32>> {
    let mut texts = DeviceTexts::new();
    graph
        .nodes()
        .map(|(id, node)| {
            texts.of(graph, id, |text| {
                if text.is_empty() {
                    return Err(Error::MissingDevice { node: node.name.to_string() });
                }
                let name = DeviceName::parse(text).map_err(|e| e.at_node(&node.name))?;
                devices.find(&name).ok_or_else(|| Error::UnknownDevice {
                    node: node.name.to_string(),
                    device: text.to_string(),
                    devices: devices.names(),
                })
            })
        })
        .collect()
}

/// Splits a graph. Parts come in the order of their first devices; tasks and devices without nodes get none.
///
/// A tensor crosses once for each part that reads it, whatever the number of readers; a reference crosses as a
/// read of its own for each reader. The same graph and state of `names` give the same
/// parts, byte for byte.
///
/// A split by task gives loops that cross devices their control loops, for itself and for the splits of its parts.
///
/// # Errors
/// `InvalidArgument` if a loop without a condition crosses devices, or a reference crosses parts.
pub fn partition(graph: &Graph, placement: &[u32], options: &PartitionOptions<'_>) -> Result<Vec<Partition>> {
    if placement.len() != graph.len() {
        return Err(Error::invalid(format!(
            "the placement is of {} nodes, the graph has {}",
            placement.len(),
            graph.len()
        )));
    }
    if let Some(device) = placement.iter().find(|&&d| d as usize >= options.devices.len()) {
        return Err(Error::invalid(format!("there is no device {device} in the set")));
    }
    if !loops::has_control_flow(graph) {
        if let Some(&device) = placement.first()
            && placement.iter().all(|d| *d == device)
        {
            return Ok(vec![whole(graph, device, options)]);
        }
        let topology = Topology::new(graph);
        return Splitting::new(graph, &topology, placement, None, options)?.split(options);
    }
    let mut graph = Cow::Borrowed(graph);
    let mut placement = Cow::Borrowed(placement);
    let mut topology = Topology::new(&graph);
    if options.split == Split::Task {
        placement = Cow::Owned(loops::move_to_neighbours(&graph, &topology, &placement)?);
        let expanded =
            loops::with_control_loops(&graph, &topology, &placement, options.devices, options.names)?;
        if let Some((expanded, places)) = expanded {
            topology = Topology::new(&expanded);
            (graph, placement) = (Cow::Owned(expanded), Cow::Owned(places));
        }
    }
    let frames = Some(Frames::new(&graph, &topology)?);
    Splitting::new(&graph, &topology, &placement, frames, options)?.split(options)
}

/// The only part of a graph that is on one device.
fn whole(graph: &Graph, device: u32, options: &PartitionOptions<'_>) -> Partition {
    let device = options.devices.get(device);
    let mut part = graph.clone();
    for id in part.ids() {
        part.node_mut(id).device = device.text.clone();
    }
    part.opaque.clear();
    part.library = graph.library.reached_from(&part);
    let of_device = (options.split == Split::Device).then(|| device.name.clone());
    Partition { task: device.name.task_name(), device: of_device, graph: part }
}

#[derive(Default)]
struct Part {
    /// The graph's own nodes in their order, then what transfers add.
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    /// Some device of the part.
    device: u32,
}

struct Splitting<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    placement: &'a [u32],
    frames: Option<Frames>,
    /// The Merge of the control loop, if any, of the node that is being connected.
    marker: Option<NodeId>,
    transfers: Transfers,
    names: &'a Names,
    /// The parts are of one task.
    within_task: bool,
    /// Whether the graph has names like those that splits give.
    look_up_names: bool,
    /// Which part each device belongs to.
    part_of: Vec<u32>,
    parts: Vec<Part>,
    /// Each node's number within its part.
    local: Vec<NodeId>,
    /// What stands for an output ([`CONTROL`] for the node's end) in a part that it was sent to.
    arrived: FxHashMap<(Output, u32), NodeId>,
}

/// What stands in a part for something of another part.
enum Arrival {
    /// One for all who need it.
    Shared(NodeId),
    /// The value behind a reference, read for one reader.
    Read(Read),
}

/// Both ends of the transfer of a value behind a reference.
struct Read {
    /// The node that gives the reference.
    variable: NodeId,
    sent: NodeId,
    received: NodeId,
}

impl<'a> Splitting<'a> {
    fn new(
        graph: &'a Graph,
        topology: &'a Topology,
        placement: &'a [u32],
        frames: Option<Frames>,
        options: &PartitionOptions<'a>,
    ) -> Result<Splitting<'a>> {
        let part_of: Vec<u32> = match options.split {
            Split::Task => options.devices.iter().map(|d| d.task_index).collect(),
            Split::Device => (0..options.devices.len() as u32).collect(),
        };
        let mut sizes = vec![0usize; part_of.len()];
        for &device in placement {
            sizes[part_of[device as usize] as usize] += 1;
        }
        let mut parts: Vec<Part> = Vec::new();
        for size in sizes {
            let nodes = Vec::with_capacity(size);
            parts.push(Part { nodes, edges: Vec::with_capacity(size), device: u32::MAX });
        }
        let mut look_up_names = false;
        let mut local = Vec::with_capacity(graph.len());
        for ((_, node), &device) in graph.nodes().zip(placement) {
            let part = &mut parts[part_of[device as usize] as usize];
            local.push(NodeId::new(part.nodes.len()));
            part.device = part.device.min(device);
            look_up_names |= options.names.may_give(&node.name);
            let mut node = node.clone();
            node.device = options.devices.get(device).text.clone();
            part.nodes.push(node);
        }
        Ok(Splitting {
            graph,
            topology,
            placement,
            frames,
            marker: None,
            transfers: Transfers::new(options.devices)?,
            names: options.names,
            within_task: options.split == Split::Device,
            look_up_names,
            part_of,
            parts,
            local,
            arrived: FxHashMap::default(),
        })
    }

    fn split(mut self, options: &PartitionOptions<'_>) -> Result<Vec<Partition>> {
        for id in self.graph.ids() {
            self.connect(id)?;
        }
        self.finish(options)
    }

    fn part(&self, id: NodeId) -> u32 {
        self.part_of[self.placement[id.index()] as usize]
    }

    /// Adds the edges into a node, and what it takes to have them in its part.
    fn connect(&mut self, id: NodeId) -> Result<()> {
        let topology = self.topology;
        let part = self.part(id);
        let device = self.placement[id.index()];
        let to = self.local[id.index()];
        let mut reads: SmallVec<[Read; 1]> = SmallVec::new();
        let mut others: SmallVec<[NodeId; 4]> = SmallVec::new();
        if self.frames.is_some() {
            self.marker = self.marker_of(id);
        }
        for (place, producer) in topology.producers(id).iter().enumerate() {
            let (from, output) = if self.part(producer.node) == part {
                others.push(self.local[producer.node.index()]);
                (self.local[producer.node.index()], producer.output)
            } else {
                let edge = topology.first_edge(id) + place;
                let from = match self.arrival(id, device, producer, edge)? {
                    Arrival::Shared(from) => {
                        others.push(from);
                        from
                    }
                    Arrival::Read(read) => {
                        let from = read.received;
                        reads.push(read);
                        from
                    }
                };
                (from, if producer.is_control() { CONTROL } else { 0 })
            };
            self.parts[part as usize].edges.push(Edge { from, output, to, input: producer.input });
        }
        for read in &reads {
            for &other in &others {
                self.parts[part as usize].edges.push(Edge::control(other, read.received));
            }
            self.delay(id, read)?;
        }
        Ok(())
    }

    /// The Merge of the control loop that what the node receives waits for.
    fn marker_of(&self, id: NodeId) -> Option<NodeId> {
        let producers = self.topology.producers(id).iter();
        let mut markers = producers.filter(|p| loops::is_marker(self.graph, p));
        markers.find(|p| self.part(p.node) == self.part(id)).map(|p| p.node)
    }

    /// Lets a reference be read, where its variable is, after what its reader waits for by control: another
    /// order would show the variable as it was before an update that the reader was told to follow. A read in a
    /// loop is not delayed: its variable is outside.
    fn delay(&mut self, id: NodeId, read: &Read) -> Result<()> {
        if self.frames.as_ref().is_some_and(|frames| frames.is_inside(id)) {
            return Ok(());
        }
        let topology = self.topology;
        let part = self.part(read.variable);
        for (place, producer) in topology.producers(id).iter().enumerate() {
            if !producer.is_control() {
                continue;
            }
            let after = if self.part(producer.node) == part {
                self.local[producer.node.index()]
            } else {
                let device = self.placement[read.variable.index()];
                match self.arrival(id, device, producer, topology.first_edge(id) + place)? {
                    Arrival::Shared(after) => after,
                    Arrival::Read(_) => continue,
                }
            };
            self.parts[part as usize].edges.push(Edge::control(after, read.sent));
        }
        Ok(())
    }

    /// What stands on `device`, in its part, for the far end of an edge into `id`.
    fn arrival(&mut self, id: NodeId, device: u32, producer: &Producer, edge: usize) -> Result<Arrival> {
        let part = self.part_of[device as usize];
        let key = (producer.source(), part);
        if let Some(&known) = self.arrived.get(&key) {
            return Ok(Arrival::Shared(known));
        }
        let source = self.graph.node(producer.node);
        let within = self.frames.as_ref().and_then(|frames| frames.name_of_edge(producer.node, id));
        let waits_for = match (within, self.marker) {
            (None, _) => None,
            (Some(_), Some(merge)) => Some(self.local[merge.index()]),
            (Some(frame), None) => {
                return Err(Error::LoopCrosses {
                    node: self.graph.node(id).name.to_string(),
                    source_node: source.name.to_string(),
                    frame: frame.to_owned(),
                });
            }
        };
        let transfer = Key {
            tensor_name: ["edge_", &edge.to_string(), "_", &source.name].concat().into(),
            from: self.placement[producer.node.index()],
            to: device,
        };
        let from_part = self.part(producer.node);
        let from = self.local[producer.node.index()];
        if producer.is_control() {
            let name = self.new_name(&source.name, "/ctrl");
            let signal = self.add(from_part, self.transfers.nothing(name, transfer.from));
            self.parts[from_part as usize].edges.push(Edge::control(from, signal));
            let (_, received) =
                self.transfer(&source.name, &transfer, DType::Float, from_part, signal.into(), part);
            self.note_origin(part, received, producer.node);
            self.wait(part, received, waits_for);
            let name = self.new_name(&source.name, "");
            let arrival = self.add(part, self.transfers.arrival(name, transfer.to));
            self.parts[part as usize].edges.push(Edge::data(received.into(), arrival, 0));
            self.arrived.insert(key, arrival);
            return Ok(Arrival::Shared(arrival));
        }
        let port = self.graph.output_type(producer.source())?;
        if port.is_ref && self.takes_reference(id, producer.input)? {
            return Err(Error::RefCrosses {
                node: self.graph.node(id).name.to_string(),
                source_node: source.name.to_string(),
            });
        }
        let output = Output { node: from, index: producer.output };
        let (sent, received) = self.transfer(&source.name, &transfer, port.dtype, from_part, output, part);
        self.wait(part, received, waits_for);
        if port.is_ref {
            return Ok(Arrival::Read(Read { variable: producer.node, sent, received }));
        }
        self.note_origin(part, received, producer.node);
        self.arrived.insert(key, received);
        Ok(Arrival::Shared(received))
    }

    /// Within a task, what a node gives is received at one time, and dead or not as one, unless the node chooses.
    fn note_origin(&mut self, part: u32, received: NodeId, source: NodeId) {
        let node = self.graph.node(source);
        let is_fed = self.transfers.is_feed(node);
        if self.within_task && (is_fed || node.op.role() == Role::Compute) {
            let received = &mut self.parts[part as usize].nodes[received.index()];
            Origin { node: &node.name, is_fed }.note(received);
        }
    }

    /// Lets a receive within a loop wait for each turn.
    fn wait(&mut self, part: u32, received: NodeId, waits_for: Option<NodeId>) {
        if let Some(merge) = waits_for {
            self.parts[part as usize].edges.push(Edge::control(merge, received));
        }
    }

    fn takes_reference(&self, id: NodeId, input: u32) -> Result<bool> {
        let types = self.graph.node(id).input_types()?;
        Ok(types.get(input as usize).is_some_and(|t| t.is_ref))
    }

    /// Adds both ends of a transfer; returns the sending and the receiving one.
    fn transfer(
        &mut self,
        source: &str,
        key: &Key,
        dtype: DType,
        from_part: u32,
        from: Output,
        to_part: u32,
    ) -> (NodeId, NodeId) {
        let name = self.new_name(source, "");
        let send = self.add(from_part, self.transfers.send(name, key, dtype, false));
        self.parts[from_part as usize].edges.push(Edge::data(from, send, 0));
        let name = self.new_name(source, "");
        (send, self.add(to_part, self.transfers.recv(name, key, dtype, false)))
    }

    fn add(&mut self, part: u32, node: Node) -> NodeId {
        let nodes = &mut self.parts[part as usize].nodes;
        nodes.push(node);
        NodeId::new(nodes.len() - 1)
    }

    fn new_name(&self, source: &str, middle: &str) -> String {
        self.names.new_name(source, middle, |name| self.look_up_names && self.graph.find(name).is_some())
    }

    fn finish(self, options: &PartitionOptions<'_>) -> Result<Vec<Partition>> {
        let Splitting { graph, parts, arrived, local, .. } = self;
        drop((arrived, local));
        let mut partitions = Vec::new();
        for Part { nodes, edges, device } in parts {
            if nodes.is_empty() {
                continue;
            }
            let mut part = Graph::assemble(nodes, edges.into_iter())?;
            part.versions = graph.versions.clone();
            part.library = graph.library.reached_from(&part);
            let name = &options.devices.get(device).name;
            let device = (options.split == Split::Device).then(|| name.clone());
            partitions.push(Partition { task: name.task_name(), device, graph: part });
        }
        Ok(partitions)
    }
}
