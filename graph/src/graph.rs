//! The graph: nodes and the edges between their ports.

use crate::dtype::PortType;
use crate::error::{Error, Result};
use crate::function::FunctionLibrary;
use crate::node::Node;
use crate::unavailable::Unavailable;
use bytes::Bytes;
use petgraph::Direction::{Incoming, Outgoing};
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// The id of a node in one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);

impl NodeId {
    /// Returns the id of the n-th node.
    pub fn new(index: usize) -> NodeId {
        NodeId(index as u32)
    }

    /// Returns the node's index. Indices are dense: the n-th node added has index n.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn petgraph(self) -> NodeIndex<u32> {
        NodeIndex::new(self.index())
    }
}

/// One output of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Output {
    pub node: NodeId,
    pub index: u32,
}

impl Output {
    /// Returns output `index` of the node.
    pub fn new(node: NodeId, index: usize) -> Output {
        Output { node, index: index as u32 }
    }
}

impl From<NodeId> for Output {
    /// Returns the node's first output.
    fn from(node: NodeId) -> Output {
        Output { node, index: 0 }
    }
}

/// The port number at both ends of a control edge.
pub const CONTROL: u32 = u32::MAX;

/// The two ends of an edge: the output index at its source and the input index at its destination; both are [`CONTROL`]
/// for a control edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) output: u32,
    pub(crate) input: u32,
}

/// An outgoing edge of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumer {
    pub node: NodeId,
    /// The index of the producer's output that the edge starts at; [`CONTROL`] for a control edge.
    pub output: u32,
    /// The index of the consumer's input that the edge leads to; [`CONTROL`] for a control edge.
    pub input: u32,
}

impl Consumer {
    /// Returns whether the edge is a control edge.
    pub fn is_control(&self) -> bool {
        self.output == CONTROL
    }
}

/// The version numbers of a GraphDef, as the program that wrote it set them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    pub producer: i32,
    pub min_consumer: i32,
    pub bad_consumers: Vec<i32>,
}

/// A dataflow graph. Node ids are dense, in the order of addition; node names are unique.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    inner: DiGraph<Node, Ports, u32>,
    names: FxHashMap<Arc<str>, NodeId>,
    pub versions: Versions,
    /// The functions that nodes may call.
    pub library: Arc<FunctionLibrary>,
    /// The nodes that are not in the graph because an op that they need is missing.
    pub unavailable: Arc<Unavailable>,
    /// Serialized GraphDef fields that this crate does not interpret and writes back unchanged; mostly empty.
    pub opaque: Bytes,
}

impl Graph {
    /// Returns an empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Returns an empty graph with capacity for `nodes` nodes and `edges` edges.
    pub fn with_capacity(nodes: usize, edges: usize) -> Graph {
        Graph {
            inner: DiGraph::with_capacity(nodes, edges),
            names: FxHashMap::with_capacity_and_hasher(nodes, Default::default()),
            ..Graph::default()
        }
    }

    /// Returns this graph with the versions, the function library, the unavailable nodes and the uninterpreted fields of
    /// `other`.
    pub fn with_settings_of(self, other: &Graph) -> Graph {
        let (versions, library) = (other.versions.clone(), other.library.clone());
        let (unavailable, opaque) = (other.unavailable.clone(), other.opaque.clone());
        Graph { versions, library, unavailable, opaque, ..self }
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.inner.node_count()
    }

    /// Returns whether the graph has no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of edges, control edges included.
    pub fn num_edges(&self) -> usize {
        self.inner.edge_count()
    }

    /// Returns the ids of all nodes in the order of their addition.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + ExactSizeIterator + use<> {
        (0..self.len() as u32).map(NodeId)
    }

    /// Returns all nodes with their ids, in the order of their addition.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.ids().map(|id| (id, self.node(id)))
    }

    /// Returns a node.
    ///
    /// # Panics
    /// If the id is out of range, which is possible for an id of another graph.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.inner[id.petgraph()]
    }

    /// Returns a mutable node, whose device and attributes the caller may change. The name and the op must not be
    /// changed.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.inner[id.petgraph()]
    }

    /// Returns the node with this name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.names.get(name).copied()
    }

    /// Returns whether a node has this name, including nodes that cannot run.
    pub fn has_name(&self, name: &str) -> bool {
        self.names.contains_key(name) || self.unavailable.contains(name)
    }

    /// Adds a node with its edges: one output per data input, in order, then the control inputs.
    ///
    /// # Errors
    /// `InvalidArgument` if the name is taken, or the inputs do not fit the op's signature in number or type.
    pub fn add(&mut self, node: Node, inputs: &[Output], control: &[NodeId]) -> Result<NodeId> {
        let id = self.add_unconnected(node)?;
        for (slot, input) in inputs.iter().enumerate() {
            self.connect(*input, id, slot);
        }
        for from in control {
            self.connect_control(*from, id);
        }
        self.check_inputs(id)?;
        Ok(id)
    }

    /// Adds a node without edges; the caller adds its edges by [`Graph::connect`]. Imports and loops need this
    /// function, because they add some nodes before the producers of those nodes.
    pub(crate) fn add_unconnected(&mut self, node: Node) -> Result<NodeId> {
        let id = NodeId::new(self.inner.node_count());
        match self.names.entry(node.name.clone()) {
            Entry::Occupied(_) => return Err(Error::DuplicateName { node: node.name.to_string() }),
            Entry::Vacant(slot) => slot.insert(id),
        };
        self.inner.add_node(node);
        Ok(id)
    }

    /// Adds a data edge into input `slot`. The edges into one node must be added in the order of their slots, data
    /// before control; only the back edge of a loop may be added later.
    pub(crate) fn connect(&mut self, from: Output, to: NodeId, slot: usize) {
        let ports = Ports { output: from.index, input: slot as u32 };
        self.inner.add_edge(from.node.petgraph(), to.petgraph(), ports);
    }

    /// Adds a control edge.
    pub(crate) fn connect_control(&mut self, from: NodeId, to: NodeId) {
        self.inner.add_edge(from.petgraph(), to.petgraph(), Ports { output: CONTROL, input: CONTROL });
    }

    /// Checks the number and types of a node's inputs, and its attributes, against its op.
    pub(crate) fn check_inputs(&self, id: NodeId) -> Result<()> {
        let node = self.node(id);
        node.op.check_attrs(&node.attrs).map_err(|e| e.at_node(&node.name))?;
        let expected = node.input_types()?;
        let inputs = self.inputs(id);
        if inputs.len() != expected.len() {
            return Err(Error::invalid(format!(
                "NodeDef expected {} inputs of Op<name={}>, got {}",
                expected.len(),
                node.op.name(),
                inputs.len()
            ))
            .at_node(&node.name));
        }
        for (slot, (input, want)) in inputs.iter().zip(&expected).enumerate() {
            let source = self.node(input.node);
            let types = source.output_types()?;
            let Some(got) = types.get(input.index as usize) else {
                return Err(Error::invalid(format!(
                    "Connecting to invalid output {} of source node {} which has {} outputs.",
                    input.index,
                    source.name,
                    types.len()
                ))
                .at_node(&node.name));
            };
            if got.dtype != want.dtype || (want.is_ref && !got.is_ref) {
                return Err(Error::invalid(format!(
                    "Input {slot} of node {} was passed {got} from {}:{} incompatible with expected {want}.",
                    node.name, source.name, input.index
                ))
                .at_node(&node.name));
            }
        }
        Ok(())
    }

    /// Returns the outputs that the node's data inputs read, in the order of the inputs.
    pub fn inputs(&self, id: NodeId) -> SmallVec<[Output; 4]> {
        let mut slots: SmallVec<[(u32, Output); 4]> = self
            .inner
            .edges_directed(id.petgraph(), Incoming)
            .filter(|e| e.weight().input != CONTROL)
            .map(|e| {
                let from = Output::new(NodeId::new(e.source().index()), e.weight().output as usize);
                (e.weight().input, from)
            })
            .collect();
        // petgraph lists the newest edge first, so the edges are in reverse order of their slots, unless a back edge
        // was added late.
        slots.reverse();
        if !slots.is_sorted_by_key(|s| s.0) {
            slots.sort_by_key(|s| s.0);
        }
        slots.into_iter().map(|s| s.1).collect()
    }

    /// Returns the output that data input `slot` reads.
    pub fn input(&self, id: NodeId, slot: usize) -> Option<Output> {
        self.inner
            .edges_directed(id.petgraph(), Incoming)
            .find(|e| e.weight().input == slot as u32)
            .map(|e| Output::new(NodeId::new(e.source().index()), e.weight().output as usize))
    }

    /// Returns the node's control inputs in the order of their addition.
    pub fn control_inputs(&self, id: NodeId) -> SmallVec<[NodeId; 2]> {
        let mut from: SmallVec<[NodeId; 2]> = self
            .inner
            .edges_directed(id.petgraph(), Incoming)
            .filter(|e| e.weight().input == CONTROL)
            .map(|e| NodeId::new(e.source().index()))
            .collect();
        from.reverse();
        from
    }

    /// Returns the outgoing edges of a node, newest first.
    pub fn consumers(&self, id: NodeId) -> impl Iterator<Item = Consumer> {
        self.inner.edges_directed(id.petgraph(), Outgoing).map(|e| Consumer {
            node: NodeId::new(e.target().index()),
            output: e.weight().output,
            input: e.weight().input,
        })
    }

    /// Returns the type of an output.
    ///
    /// # Errors
    /// `InvalidArgument` if the node does not have the output.
    pub fn output_type(&self, output: Output) -> Result<PortType> {
        let node = self.node(output.node);
        let types = node.output_types()?;
        types.get(output.index as usize).copied().ok_or_else(|| {
            Error::invalid(format!(
                "{}:{}: output index too large, must be < {}",
                node.name,
                output.index,
                types.len()
            ))
        })
    }

    /// Returns the output's name as clients write it: `name:index`.
    pub fn output_name(&self, output: Output) -> String {
        format!("{}:{}", self.node(output.node).name, output.index)
    }

    /// Returns all edges in the order of their addition: source, destination and ports.
    pub(crate) fn raw_edges(&self) -> impl ExactSizeIterator<Item = (NodeId, NodeId, Ports)> {
        self.inner
            .raw_edges()
            .iter()
            .map(|e| (NodeId::new(e.source().index()), NodeId::new(e.target().index()), e.weight))
    }
}

/// Two graphs are equal if they have equal nodes (by name, op, device and attributes) with equal edges; the order of
/// nodes does not matter.
impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        self.len() == other.len()
            && self.versions == other.versions
            && self.library == other.library
            && self.opaque == other.opaque
            && self.nodes().all(|(id, node)| {
                let Some(twin) = other.find(&node.name) else { return false };
                let them = other.node(twin);
                let named = |g: &Graph, o: &Output| (g.node(o.node).name.clone(), o.index);
                let inputs = |g: &Graph, id| g.inputs(id).iter().map(|o| named(g, o)).collect::<Vec<_>>();
                let control = |g: &Graph, id| {
                    g.control_inputs(id).iter().map(|n| g.node(*n).name.clone()).collect::<Vec<_>>()
                };
                node.computes_same_as(them)
                    && node.device == them.device
                    && node.opaque == them.opaque
                    && inputs(self, id) == inputs(other, twin)
                    && control(self, id) == control(other, twin)
            })
    }
}
