//! Import of graphs from lists of nodes that refer to each other by name, in any order, as in GraphDefs and the text
//! format.

use crate::attr::Attrs;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops;
use crate::topology::Topology;
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// An import in progress: nodes are added with inputs given by name, and [`Importer::finish`] connects and checks them.
#[derive(Debug)]
pub struct Importer {
    graph: Graph,
    /// The number of nodes that the graph had before the import.
    first_new: usize,
    inputs: InputNames,
    devices: FxHashSet<Arc<str>>,
}

/// The input names of all nodes, stored in one string: large graphs have many names, and each is read only once.
#[derive(Debug, Default)]
struct InputNames {
    text: String,
    /// The byte offset in `text` at which each name ends.
    ends: Vec<usize>,
    /// For each node, the index in `ends` just after the node's last input name.
    nodes: Vec<usize>,
}

impl InputNames {
    /// Appends the input names of the next node.
    fn push_node(&mut self, inputs: impl IntoIterator<Item = impl AsRef<str>>) {
        for input in inputs {
            self.text.push_str(input.as_ref());
            self.ends.push(self.text.len());
        }
        self.nodes.push(self.ends.len());
    }

    /// Returns the input names of the n-th node.
    fn of_node(&self, node: usize) -> impl Iterator<Item = &str> {
        let first = node.checked_sub(1).map_or(0, |before| self.nodes[before]);
        (first..self.nodes[node]).map(|i| {
            let start = i.checked_sub(1).map_or(0, |before| self.ends[before]);
            &self.text[start..self.ends[i]]
        })
    }
}

impl Importer {
    /// Starts an import into `graph`; inputs of the imported nodes may name nodes of `graph`.
    pub fn new(graph: Graph) -> Importer {
        Importer {
            first_new: graph.len(),
            graph,
            inputs: InputNames::default(),
            devices: FxHashSet::default(),
        }
    }

    /// Adds a node. If its op is a function of the graph's library, the node becomes a call. `inputs` are `name` or
    /// `name:port`, followed by `^name` for control inputs.
    ///
    /// # Errors
    /// `UnknownOp` if neither an op nor a function has this name; `InvalidArgument` if the node's name is empty or
    /// taken.
    pub fn add(
        &mut self,
        name: &str,
        op: &str,
        device: &str,
        attrs: Attrs,
        inputs: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<NodeId> {
        if name.is_empty() {
            return Err(Error::invalid(format!("a node of op '{op}' has no name")));
        }
        let mut node = match (ops::lookup(op), self.graph.library.get(op)) {
            (Some(op), _) => Node { attrs, ..Node::new(name, op) },
            (None, Some(function)) => function.call_node(name, &attrs)?,
            (None, None) => {
                return Err(Error::UnknownOp { node: name.to_owned(), op: op.to_owned() });
            }
        };
        let device = match self.devices.get(device) {
            Some(device) => device.clone(),
            None => {
                let device: Arc<str> = device.into();
                self.devices.insert(device.clone());
                device
            }
        };
        node.device = device;
        let id = self.graph.add_unconnected(node)?;
        self.inputs.push_node(inputs);
        Ok(id)
    }

    /// Returns an imported node, whose device and attributes the caller may change.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.graph.node_mut(id)
    }

    /// Returns the graph, whose versions, function library and uninterpreted fields the caller may change.
    pub fn graph_mut(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// Connects the nodes and checks each against its op.
    ///
    /// # Errors
    /// `InvalidArgument` for unknown or unfitting inputs, and for cycles outside loops.
    pub fn finish(mut self) -> Result<Graph> {
        let inputs = std::mem::take(&mut self.inputs);
        for i in 0..inputs.nodes.len() {
            self.connect(NodeId::new(self.first_new + i), inputs.of_node(i))?;
        }
        for i in self.first_new..self.graph.len() {
            self.graph.check_inputs(NodeId::new(i))?;
        }
        Topology::new(&self.graph).order(&self.graph)?;
        Ok(self.graph)
    }

    /// Connects the inputs of one node.
    fn connect<'a>(&mut self, id: NodeId, inputs: impl Iterator<Item = &'a str>) -> Result<()> {
        let mut slot = 0;
        let mut control_seen = false;
        for input in inputs {
            let unknown = |graph: &Graph, name: &str| Error::UnknownInput {
                node: graph.node(id).name.to_string(),
                input: name.to_owned(),
            };
            if let Some(name) = input.strip_prefix('^') {
                let from = self.graph.find(name).ok_or_else(|| unknown(&self.graph, name))?;
                self.graph.connect_control(from, id);
                control_seen = true;
                continue;
            }
            if control_seen {
                return Err(Error::invalid(format!(
                    "Node '{}': data input '{input}' comes after a control input",
                    self.graph.node(id).name
                )));
            }
            let (name, index) = parse_output_name(input).ok_or_else(|| {
                Error::invalid(format!("'{input}' names no output of a node"))
                    .at_node(&self.graph.node(id).name)
            })?;
            let from = self.graph.find(name).ok_or_else(|| unknown(&self.graph, name))?;
            self.graph.connect(Output { node: from, index }, id, slot);
            slot += 1;
        }
        Ok(())
    }
}

/// Parses `name` or `name:port`.
pub fn parse_output_name(text: &str) -> Option<(&str, u32)> {
    match text.rsplit_once(':') {
        None => Some((text, 0)),
        Some((name, port)) if !name.is_empty() => match port.parse::<u32>() {
            Ok(port) if port <= i32::MAX as u32 => Some((name, port)),
            _ => None,
        },
        Some(_) => None,
    }
}
