//! The partitioner, which splits a placed graph into one graph for each task or device and replaces each edge
//! that crosses partitions by a pair of Send and Recv nodes.

mod loops;

use crate::device_set::DeviceSet;
use crate::error::{Error, Result};
use crate::spec::DeviceTexts;
use crate::transfer::{Key, Transfers};
use graph::{
    CONTROL, DType, DeviceName, Edge, Graph, Node, NodeId, Output, Producer, RecvOrigin, Role, TaskName,
    Topology,
};
use loops::Frames;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

/// The unit by which a graph is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// One partition for each task, as a master splits a graph: a tensor is sent once to each task.
    Task,
    /// One partition for each device, as a worker splits its own partition again.
    Device,
}

/// The generator of names for nodes that a split adds: `<source>_S<n>` at a master, `<source>_G<n>` at a worker. The
/// numbers continue from split to split, because a worker caches the kernels of stateful nodes by name until the
/// session ends, so a name must not be reused for another edge.
#[derive(Debug)]
pub struct Names {
    infix: &'static str,
    next: AtomicU64,
}

impl Names {
    /// Creates the generator for the splits of one session at its master.
    pub fn master() -> Names {
        Names { infix: "_S", next: AtomicU64::new(0) }
    }

    /// Creates the generator for the splits of one session at a worker.
    pub fn worker() -> Names {
        Names { infix: "_G", next: AtomicU64::new(0) }
    }

    /// Returns a name that no split has used; `taken` returns whether the graph has a node of a given name.
    fn new_name(&self, source: &str, middle: &str, taken: impl Fn(&str) -> bool) -> String {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let name = [source, middle, self.infix, &number.to_string()].concat();
            if !taken(&name) {
                return name;
            }
        }
    }

    /// Returns whether a name has the form of generated names.
    fn could_generate(&self, name: &str) -> bool {
        name.trim_end_matches(|c: char| c.is_ascii_digit()).ends_with(self.infix)
    }
}

/// Parameters of a split.
#[derive(Clone, Copy, Debug)]
pub struct PartitionOptions<'a> {
    /// The set of devices to which the indices in the placement refer.
    pub devices: &'a DeviceSet,
    pub split: Split,
    pub names: &'a Names,
}

/// One partition of a graph. Each of its nodes has a full device name.
#[derive(Clone, Debug)]
pub struct Partition {
    pub task: TaskName,
    /// The partition's device if the graph was split by [`Split::Device`].
    pub device: Option<DeviceName>,
    pub graph: Graph,
}

/// Returns the device of each node of a graph whose nodes have full device names.
///
/// # Errors
/// `InvalidArgument` if a node has no device, or a device that is not in the set.
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

/// Splits a graph into partitions, in the order in which their tasks or devices occur in `options.devices`. A task
/// or device without nodes gets no partition. `placement` has the index of each node's device in that set.
///
/// A tensor is sent once to each partition that reads it, whatever the number of readers. A reference is sent
/// separately, as a value, to each reader. Two calls with the same arguments give the same partitions, byte for
/// byte, if the generator of names, `options.names`, is in the same state.
///
/// A split by task also adds the control loops of loops that cross devices, both for the split itself and for
/// the later splits of its partitions.
///
/// # Errors
/// `InvalidArgument` if a loop without a condition crosses devices, or a reference crosses partitions.
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

/// Returns the only partition of a graph whose nodes are all on one device.
fn whole(graph: &Graph, device: u32, options: &PartitionOptions<'_>) -> Partition {
    let device = options.devices.get(device);
    let mut part = graph.clone();
    for id in part.ids() {
        part.node_mut(id).device = device.text.clone();
    }
    part.opaque.clear();
    part.library = graph.library.reachable_from(&part);
    let of_device = (options.split == Split::Device).then(|| device.name.clone());
    Partition { task: device.name.task_name(), device: of_device, graph: part }
}

/// A partition under construction.
#[derive(Default)]
struct PartitionBuilder {
    /// The partition's nodes in the order of the graph, followed by the nodes of transfers.
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    /// The lowest of the indices of the partition's devices.
    device: u32,
}

/// The state of a split: the graph, and the partitions under construction.
struct Splitting<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    placement: &'a [u32],
    frames: Option<Frames>,
    /// The Merge of the control loop, if any, that the current node's Recvs wait for.
    control_merge: Option<NodeId>,
    transfers: Transfers,
    names: &'a Names,
    /// Set if all partitions belong to one task.
    within_task: bool,
    /// Set if the graph has a name in the form of generated names, so that new names must be checked against
    /// it.
    look_up_names: bool,
    /// For each device, the index of its partition.
    part_of: Vec<u32>,
    parts: Vec<PartitionBuilder>,
    /// For each node of the whole graph, its id in the graph of its partition.
    local: Vec<NodeId>,
    /// The local node that replaces a remote output ([`CONTROL`] for the control output) in a partition, by
    /// output and partition.
    local_sources: FxHashMap<(Output, u32), NodeId>,
}

/// The local node that replaces the source of an edge from another partition.
enum LocalSource {
    /// A node that all consumers in the partition share.
    Shared(NodeId),
    /// A value read from a reference for a single consumer.
    Reference(ReferenceRead),
}

/// The Send and the Recv of the value of a reference.
struct ReferenceRead {
    /// The node whose output is the reference.
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
        let mut parts: Vec<PartitionBuilder> = Vec::new();
        for size in sizes {
            let nodes = Vec::with_capacity(size);
            parts.push(PartitionBuilder { nodes, edges: Vec::with_capacity(size), device: u32::MAX });
        }
        let mut look_up_names = false;
        let mut local = Vec::with_capacity(graph.len());
        for ((_, node), &device) in graph.nodes().zip(placement) {
            let part = &mut parts[part_of[device as usize] as usize];
            local.push(NodeId::new(part.nodes.len()));
            part.device = part.device.min(device);
            look_up_names |= options.names.could_generate(&node.name);
            let mut node = node.clone();
            node.device = options.devices.get(device).text.clone();
            part.nodes.push(node);
        }
        Ok(Splitting {
            graph,
            topology,
            placement,
            frames,
            control_merge: None,
            transfers: Transfers::new(options.devices)?,
            names: options.names,
            within_task: options.split == Split::Device,
            look_up_names,
            part_of,
            parts,
            local,
            local_sources: FxHashMap::default(),
        })
    }

    /// Adds the edges and transfers of all nodes, and returns the partitions.
    fn split(mut self, options: &PartitionOptions<'_>) -> Result<Vec<Partition>> {
        for id in self.graph.ids() {
            self.connect(id)?;
        }
        self.finish(options)
    }

    /// Returns the index of the partition of a node.
    fn part(&self, id: NodeId) -> u32 {
        self.part_of[self.placement[id.index()] as usize]
    }

    /// Adds the edges into a node, and the transfers that bring remote inputs into the node's partition.
    fn connect(&mut self, id: NodeId) -> Result<()> {
        let topology = self.topology;
        let part = self.part(id);
        let device = self.placement[id.index()];
        let to = self.local[id.index()];
        let mut reads: SmallVec<[ReferenceRead; 1]> = SmallVec::new();
        let mut others: SmallVec<[NodeId; 4]> = SmallVec::new();
        if self.frames.is_some() {
            self.control_merge = self.control_merge_of(id);
        }
        for (place, producer) in topology.producers(id).iter().enumerate() {
            let (from, output) = if self.part(producer.node) == part {
                others.push(self.local[producer.node.index()]);
                (self.local[producer.node.index()], producer.output)
            } else {
                let edge = topology.first_edge(id) + place;
                let from = match self.local_source(id, device, producer, edge)? {
                    LocalSource::Shared(from) => {
                        others.push(from);
                        from
                    }
                    LocalSource::Reference(read) => {
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

    /// Returns the Merge of the control loop that the node's Recvs wait for, if the node is in a loop that has one.
    fn control_merge_of(&self, id: NodeId) -> Option<NodeId> {
        let producers = self.topology.producers(id).iter();
        let mut control_merges = producers.filter(|p| loops::is_control_loop_edge(self.graph, p));
        control_merges.find(|p| self.part(p.node) == self.part(id)).map(|p| p.node)
    }

    /// Makes the Send of a reference wait, in the variable's partition, for the control inputs of its reader.
    /// Otherwise the value could be read before an update that the reader must follow. A read in a loop is
    /// not delayed, because its variable is outside of the loop.
    fn delay(&mut self, id: NodeId, read: &ReferenceRead) -> Result<()> {
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
                match self.local_source(id, device, producer, topology.first_edge(id) + place)? {
                    LocalSource::Shared(after) => after,
                    LocalSource::Reference(_) => continue,
                }
            };
            self.parts[part as usize].edges.push(Edge::control(after, read.sent));
        }
        Ok(())
    }

    /// Returns the node in the partition of `device` that replaces the source of an edge into `id`, and adds
    /// the transfer if there is none.
    fn local_source(
        &mut self,
        id: NodeId,
        device: u32,
        producer: &Producer,
        edge: usize,
    ) -> Result<LocalSource> {
        let part = self.part_of[device as usize];
        let key = (producer.source(), part);
        if let Some(&existing) = self.local_sources.get(&key) {
            return Ok(LocalSource::Shared(existing));
        }
        let source = self.graph.node(producer.node);
        let within = self.frames.as_ref().and_then(|frames| frames.name_of_edge(producer.node, id));
        let waits_for = match (within, self.control_merge) {
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
            let signal = self.add(from_part, self.transfers.empty_constant(name, transfer.from));
            self.parts[from_part as usize].edges.push(Edge::control(from, signal));
            let (_, received) =
                self.transfer(&source.name, &transfer, DType::Float, from_part, signal.into(), part);
            self.note_origin(part, received, producer.node);
            self.wait(part, received, waits_for);
            let name = self.new_name(&source.name, "");
            let local_source = self.add(part, self.transfers.control_arrival(name, transfer.to));
            self.parts[part as usize].edges.push(Edge::data(received.into(), local_source, 0));
            self.local_sources.insert(key, local_source);
            return Ok(LocalSource::Shared(local_source));
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
            return Ok(LocalSource::Reference(ReferenceRead { variable: producer.node, sent, received }));
        }
        self.note_origin(part, received, producer.node);
        self.local_sources.insert(key, received);
        Ok(LocalSource::Shared(received))
    }

    /// Writes the name of the producing node into a Recv from another device of the same task. All outputs of a node
    /// arrive together and are all alive or all dead; this does not hold for a control-flow node, whose name is not
    /// written.
    fn note_origin(&mut self, part: u32, received: NodeId, source: NodeId) {
        let node = self.graph.node(source);
        let is_fed = self.transfers.is_feed(node);
        if self.within_task && (is_fed || node.op.role() == Role::Compute) {
            let received = &mut self.parts[part as usize].nodes[received.index()];
            RecvOrigin { node: &node.name, is_fed }.note(received);
        }
    }

    /// Makes a Recv in a loop wait for `waits_for`, the Merge of the control loop, so that the Recv runs in each
    /// iteration.
    fn wait(&mut self, part: u32, received: NodeId, waits_for: Option<NodeId>) {
        if let Some(merge) = waits_for {
            self.parts[part as usize].edges.push(Edge::control(merge, received));
        }
    }

    /// Returns whether an input of the node requires a reference.
    fn takes_reference(&self, id: NodeId, input: u32) -> Result<bool> {
        let types = self.graph.node(id).input_types()?;
        Ok(types.get(input as usize).is_some_and(|t| t.is_ref))
    }

    /// Adds the Send and the Recv of a transfer and returns both.
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

    /// Builds the graphs of all partitions that have nodes.
    fn finish(self, options: &PartitionOptions<'_>) -> Result<Vec<Partition>> {
        let Splitting { graph, parts, local_sources, local, .. } = self;
        drop((local_sources, local));
        let mut partitions = Vec::new();
        for PartitionBuilder { nodes, edges, device } in parts {
            if nodes.is_empty() {
                continue;
            }
            let mut part = Graph::assemble(nodes, edges.into_iter())?;
            part.versions = graph.versions.clone();
            part.library = graph.library.reachable_from(&part);
            let name = &options.devices.get(device).name;
            let device = (options.split == Split::Device).then(|| name.clone());
            partitions.push(Partition { task: name.task_name(), device, graph: part });
        }
        Ok(partitions)
    }
}
