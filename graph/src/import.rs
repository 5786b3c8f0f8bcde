//! Graphs from lists of nodes that name each other, in any order: what GraphDefs and texts are.

use crate::attr::Attrs;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops;
use crate::topology::Topology;
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// Collects nodes, then connects and checks them.
#[derive(Debug)]
pub struct Importer {
    graph: Graph,
    /// Nodes up to here were there before.
    first_new: usize,
    inputs: InputNames,
    devices: FxHashSet<Arc<str>>,
}

/// The inputs that nodes name, node after node: one text for all, for graphs have many and look at each once.
#[derive(Debug, Default)]
struct InputNames {
    text: String,
    /// Where each name ends.
    ends: Vec<usize>,
    /// How many names there are up to the end of each node.
    nodes: Vec<usize>,
}

impl InputNames {
    fn push_node(&mut self, inputs: impl IntoIterator<Item = impl AsRef<str>>) {
        for input in inputs {
            self.text.push_str(input.as_ref());
            self.ends.push(self.text.len());
        }
        self.nodes.push(self.ends.len());
    }

    /// The names of the n-th node's inputs.
    fn of_node(&self, node: usize) -> impl Iterator<Item = &str> {
        let first = node.checked_sub(1).map_or(0, |before| self.nodes[before]);
        (first..self.nodes[node]).map(|i| {
            let start = i.checked_sub(1).map_or(0, |before| self.ends[before]);
            &self.text[start..self.ends[i]]
        })
    }
}

impl Importer {
    /// Imports into `graph`, whose nodes the new ones may name.
    pub fn new(graph: Graph) -> Importer {
        Importer {
            first_new: graph.len(),
            graph,
            inputs: InputNames::default(),
            devices: FxHashSet::default(),
        }
    }

    /// Adds a node; one whose op is a function of the graph's library becomes a call of it. `inputs` are `name`,
    /// `name:port`, and then `^name` for control inputs.
    ///
    /// # Errors
    /// An op that is not there, or a name that is taken.
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

    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.graph.node_mut(id)
    }

    pub fn graph_mut(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// Connects the nodes, checks each against its op, and that there is no cycle outside loops.
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

/// `name` or `name:port`.
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
