//! Control flow in a graph that is about to be split. Control-flow ops without computation move to the device
//! of a neighbour, and a loop whose iterations cross devices gets a *control loop* on each device that
//! receives tensors in it.
//!
//! A control loop is a loop of the same loop frame whose loop variable carries no data. It runs as many
//! iterations as the original loop because it has the same condition, and each Recv within the original loop
//! waits for the Merge of the control loop on its device.

use super::Names;
use crate::device_set::DeviceSet;
use crate::error::{Error, Result};
use graph::{DType, Edge, Graph, Node, NodeId, Op, Output, Role, Shape, Tensor, Topology, ops};
use rustc_hash::FxHashMap;

/// Returns whether the graph has a Switch, Enter, Exit or NextIteration.
pub(super) fn has_control_flow(graph: &Graph) -> bool {
    graph.nodes().any(|(_, node)| {
        matches!(node.op.role(), Role::Switch | Role::Enter | Role::Exit | Role::NextIteration)
    })
}

/// Returns the placement with Switch and Exit on the device of their data input, and NextIteration and Enter
/// (except an Enter of a reference) on the device of their first consumer. Requested devices are ignored, so
/// that only the edges at a loop's border cross devices.
pub(super) fn move_to_neighbours(graph: &Graph, topology: &Topology, placement: &[u32]) -> Result<Vec<u32>> {
    let mut placement = placement.to_vec();
    let order = topology.order(graph)?;
    for &id in order.iter().rev() {
        let node = graph.node(id);
        let moves = match node.op.role() {
            Role::NextIteration => true,
            Role::Enter => !node.output_types()?.iter().any(|t| t.is_ref),
            _ => false,
        };
        if moves && let Some(consumer) = topology.consumers(id).iter().find(|c| !c.is_control()) {
            placement[id.index()] = placement[consumer.node.index()];
        }
    }
    for &id in &order {
        if matches!(graph.node(id).op.role(), Role::Switch | Role::Exit)
            && let Some(input) = topology.producers(id).first()
        {
            placement[id.index()] = placement[input.node.index()];
        }
    }
    Ok(placement)
}

/// The loop frame of each node.
pub(super) struct Frames {
    /// For each node, the index of its frame in `frames`; 0 is the frame outside of all loops.
    of: Vec<u32>,
    of_outputs: Vec<u32>,
    frames: Vec<Frame>,
}

struct Frame {
    name: String,
    parent: u32,
    parallel_iterations: i64,
    /// The loop's LoopCond node.
    pivot: Option<NodeId>,
}

impl Frames {
    pub(super) fn new(graph: &Graph, topology: &Topology) -> Result<Frames> {
        let outside = Frame { name: String::new(), parent: 0, parallel_iterations: 1, pivot: None };
        let mut frames = vec![outside];
        let mut indices: FxHashMap<(u32, String), u32> = FxHashMap::default();
        let mut of = vec![0u32; graph.len()];
        let mut of_outputs = vec![0u32; graph.len()];
        for id in topology.order(graph)? {
            // The source of a back edge has not been assigned a frame yet, but the other input of the loop's Merge has
            // one.
            let inside = topology.producers(id).iter().map(|p| of_outputs[p.node.index()]).find(|f| *f != 0);
            let inside = inside.unwrap_or(0);
            of[id.index()] = inside;
            let node = graph.node(id);
            of_outputs[id.index()] = match node.op.role() {
                Role::Enter => {
                    let key = (inside, node.attr::<String>("frame_name")?);
                    let parallel_iterations = node.attr("parallel_iterations")?;
                    *indices.entry(key).or_insert_with_key(|(parent, name)| {
                        let (parent, name) = (*parent, name.clone());
                        frames.push(Frame { name, parent, parallel_iterations, pivot: None });
                        (frames.len() - 1) as u32
                    })
                }
                Role::Exit => frames[inside as usize].parent,
                Role::LoopCond => {
                    frames[inside as usize].pivot.get_or_insert(id);
                    inside
                }
                _ => inside,
            };
        }
        Ok(Frames { of, of_outputs, frames })
    }

    /// Returns whether the node is in a loop.
    pub(super) fn is_inside(&self, id: NodeId) -> bool {
        self.of[id.index()] != 0
    }

    /// Returns the loop frame that contains both ends of an edge, if the edge stays in a loop.
    fn of_edge(&self, from: NodeId, to: NodeId) -> Option<u32> {
        let frame = self.of_outputs[from.index()];
        (frame != 0 && frame == self.of[to.index()]).then_some(frame)
    }

    /// Returns the name of the loop that contains both ends of an edge, if the edge stays in a loop.
    pub(super) fn name_of_edge(&self, from: NodeId, to: NodeId) -> Option<&str> {
        self.of_edge(from, to).map(|frame| &*self.frames[frame as usize].name)
    }
}

/// The prefix of the names of a control loop's nodes, by which later splits recognise them.
const PREFIX: &str = "_cloop";

/// Adds control loops for the edges that cross devices within loops, and returns the graph and its placement:
/// each node that consumes such an edge waits for the Merge of its device's control loop. Returns `None` if
/// no edge crosses devices within a loop.
///
/// # Errors
/// `InvalidArgument` for a loop that crosses devices and has no condition.
pub(super) fn with_control_loops(
    graph: &Graph,
    topology: &Topology,
    placement: &[u32],
    devices: &DeviceSet,
    names: &Names,
) -> Result<Option<(Graph, Vec<u32>)>> {
    let frames = Frames::new(graph, topology)?;
    let mut crossing = Vec::new();
    for to in graph.ids() {
        let device = placement[to.index()];
        for producer in topology.producers(to) {
            if placement[producer.node.index()] != device
                && let Some(frame) = frames.of_edge(producer.node, to)
            {
                crossing.push((to, frame));
                break;
            }
        }
    }
    if crossing.is_empty() {
        return Ok(None);
    }
    let mut loops = ControlLoops {
        graph,
        frames: &frames,
        devices,
        names,
        ops: Ops::new()?,
        nodes: graph.nodes().map(|(_, node)| node.clone()).collect(),
        edges: Vec::with_capacity(graph.num_edges()),
        placement: placement.to_vec(),
        merges: FxHashMap::default(),
    };
    for to in graph.ids() {
        let edge = |p: &graph::Producer| Edge { from: p.node, output: p.output, to, input: p.input };
        loops.edges.extend(topology.producers(to).iter().map(edge));
    }
    for (to, frame) in crossing {
        let merge = loops.merge(frame, placement[to.index()], to)?;
        loops.edges.push(Edge::control(merge, to));
    }
    let ControlLoops { nodes, edges, placement, .. } = loops;
    let expanded = Graph::assemble(nodes, edges.into_iter())?.with_settings_of(graph);
    Ok(Some((expanded, placement)))
}

struct Ops {
    constant: &'static Op,
    enter: &'static Op,
    merge: &'static Op,
    switch: &'static Op,
    next: &'static Op,
}

impl Ops {
    fn new() -> Result<Ops> {
        let op = |name| {
            ops::lookup(name)
                .ok_or_else(|| Error::Graph(graph::Error::unimplemented(format!("op '{name}' is not there"))))
        };
        Ok(Ops {
            constant: op("Const")?,
            enter: op("Enter")?,
            merge: op("Merge")?,
            switch: op("Switch")?,
            next: op("NextIteration")?,
        })
    }
}

struct ControlLoops<'a> {
    graph: &'a Graph,
    frames: &'a Frames,
    devices: &'a DeviceSet,
    names: &'a Names,
    ops: Ops,
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    placement: Vec<u32>,
    /// The Merge of the control loop of each (loop frame, device).
    merges: FxHashMap<(u32, u32), NodeId>,
}

impl ControlLoops<'_> {
    /// Returns the Merge of the frame's control loop on a device. If the control loop does not exist, adds it
    /// together with those of the enclosing frames, named after the node `needed_by`.
    fn merge(&mut self, frame: u32, device: u32, needed_by: NodeId) -> Result<NodeId> {
        if let Some(&existing) = self.merges.get(&(frame, device)) {
            return Ok(existing);
        }
        let mut inner: Option<NodeId> = None;
        let mut innermost = None;
        let mut at = frame;
        loop {
            if at == 0 {
                if let Some(enter) = inner {
                    let variable = self.add_loop_variable(device, needed_by)?;
                    self.edges.push(Edge::data(variable.into(), enter, 0));
                }
                break;
            }
            if let Some(&outer) = self.merges.get(&(at, device)) {
                if let Some(enter) = inner {
                    self.edges.push(Edge::data(outer.into(), enter, 0));
                }
                break;
            }
            let (enter, merge) = self.control_loop(at, device, needed_by)?;
            if let Some(inner) = inner {
                self.edges.push(Edge::data(merge.into(), inner, 0));
            }
            innermost.get_or_insert(merge);
            inner = Some(enter);
            at = self.frames.frames[at as usize].parent;
        }
        innermost.ok_or_else(|| Error::invalid("a control loop of no loop"))
    }

    /// Adds the nodes of one control loop. Returns its Enter, whose input is not connected yet, and its
    /// Merge.
    fn control_loop(&mut self, frame: u32, device: u32, needed_by: NodeId) -> Result<(NodeId, NodeId)> {
        let info = &self.frames.frames[frame as usize];
        let Some(pivot) = info.pivot else {
            return Err(Error::LoopWithoutPivot { frame: info.name.clone() });
        };
        let Ops { enter, merge, switch, next, .. } = self.ops;
        let new = |op| Node::new("", op).with_attr("T", DType::Float);
        let enter = new(enter)
            .with_attr("frame_name", info.name.as_str())
            .with_attr("parallel_iterations", info.parallel_iterations);
        let enter = self.add(enter, device, needed_by);
        let merge = self.add(new(merge).with_attr("N", 2i64), device, needed_by);
        let switch = self.add(new(switch), device, needed_by);
        let next = self.add(new(next), device, needed_by);
        self.edges.extend([
            Edge::data(enter.into(), merge, 0),
            Edge::data(next.into(), merge, 1),
            Edge::data(merge.into(), switch, 0),
            Edge::data(pivot.into(), switch, 1),
            Edge::data(Output::new(switch, 1), next, 0),
        ]);
        if self.placement[pivot.index()] != device {
            self.edges.push(Edge::control(merge, switch));
        }
        self.merges.insert((frame, device), merge);
        Ok((enter, merge))
    }

    /// Adds the empty constant that is the loop variable of control loops.
    fn add_loop_variable(&mut self, device: u32, needed_by: NodeId) -> Result<NodeId> {
        let nothing = Tensor::zeros(DType::Float, Shape::new(&[0])?)?;
        let node =
            Node::new("", self.ops.constant).with_attr("dtype", DType::Float).with_attr("value", nothing);
        Ok(self.add(node, device, needed_by))
    }

    /// Adds a node on `device`, with a new name made from the name of `needed_by`.
    fn add(&mut self, mut node: Node, device: u32, needed_by: NodeId) -> NodeId {
        let source = [PREFIX, &self.graph.node(needed_by).name].concat();
        node.name = self.names.new_name(&source, "", |name| self.graph.find(name).is_some()).into();
        node.device = self.devices.get(device).text.clone();
        self.nodes.push(node);
        self.placement.push(device);
        NodeId::new(self.nodes.len() - 1)
    }
}

/// Returns whether the edge is the control edge by which a node waits for the Merge of a control loop.
pub(super) fn is_control_loop_edge(graph: &Graph, producer: &graph::Producer) -> bool {
    let source = graph.node(producer.node);
    producer.is_control() && source.op.role() == Role::Merge && source.name.starts_with(PREFIX)
}
