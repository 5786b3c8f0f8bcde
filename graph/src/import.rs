//! Import of graphs from lists of nodes that refer to each other by name, in any order, as in GraphDefs and the text
//! format.

use crate::attr::Attrs;
use crate::error::{Error, Result};
use crate::function::each_function;
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops;
use crate::passes;
use crate::topology::Topology;
use crate::unavailable::Unavailable;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// An import in progress: nodes are added with inputs given by name, and [`Importer::finish`] connects and checks them.
#[derive(Debug)]
pub struct Importer {
    graph: Graph,
    /// The number of nodes that the graph had before the import.
    first_new: usize,
    inputs: InputNames,
    devices: FxHashSet<Arc<str>>,
    /// The nodes that cannot run because an op is missing.
    unavailable: Unavailable,
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
            unavailable: (*graph.unavailable).clone(),
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
        let added = self.add_if_known(name, op, device, attrs, inputs)?;
        added.ok_or_else(|| Error::unknown_op(name, op))
    }

    /// Adds a node like [`Importer::add`]. A node whose op is missing is noted as unavailable, and `None` is returned.
    ///
    /// # Errors
    /// `InvalidArgument` if the node's name is empty or taken.
    pub fn add_if_known(
        &mut self,
        name: &str,
        op: &str,
        device: &str,
        attrs: Attrs,
        inputs: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Option<NodeId>> {
        if name.is_empty() {
            return Err(Error::invalid(format!("a node of op '{op}' has no name")));
        }
        if self.unavailable.contains(name) {
            return Err(Error::DuplicateName { node: name.to_owned() });
        }
        let mut node = match (ops::lookup(op), self.graph.library.get(op)) {
            (Some(op), _) => Node { attrs, ..Node::new(name, op) },
            (None, Some(function)) => function.call_node(name, &attrs)?,
            (None, None) => {
                self.note_missing(name, op)?;
                return Ok(None);
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
        Ok(Some(id))
    }

    /// Notes a node whose op is missing.
    fn note_missing(&mut self, name: &str, op: &str) -> Result<()> {
        if self.graph.find(name).is_some() {
            return Err(Error::DuplicateName { node: name.to_owned() });
        }
        let (name, op) = (name.into(), op.into());
        self.unavailable.add_op(&op, &name);
        self.unavailable.add_node(&name, &op);
        Ok(())
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
    /// `UnknownOp` if an op is missing; `InvalidArgument` for unknown or unfitting inputs, and for cycles outside loops.
    pub fn finish(mut self) -> Result<Graph> {
        if let Some(refusal) = self.unavailable.refusal() {
            return Err(refusal);
        }
        let inputs = std::mem::take(&mut self.inputs);
        self.finish_those(&inputs, |_| true)
    }

    /// Connects and checks the nodes like [`Importer::finish`], without those that cannot run because an op is missing:
    /// nodes of that op, nodes that call functions with such nodes, and all that depend on them. The field
    /// `unavailable` of the graph names them.
    ///
    /// # Errors
    /// `InvalidArgument` for unknown or unfitting inputs, and for cycles outside loops.
    pub fn finish_available(mut self) -> Result<Graph> {
        let inputs = std::mem::take(&mut self.inputs);
        let is_available = self.available(&inputs);
        self.finish_those(&inputs, |i| is_available[i])
    }

    /// Connects and checks the new nodes for which `is_kept` is true, and removes the others.
    fn finish_those(mut self, inputs: &InputNames, is_kept: impl Fn(usize) -> bool) -> Result<Graph> {
        let kept = || (0..inputs.nodes.len()).filter(|i| is_kept(*i));
        for i in kept() {
            self.connect(NodeId::new(self.first_new + i), inputs.of_node(i))?;
        }
        for i in kept() {
            self.graph.check_inputs(NodeId::new(self.first_new + i))?;
        }
        let mut graph = self.graph;
        if kept().count() < inputs.nodes.len() {
            let is_old_or_kept = |i: usize| i.checked_sub(self.first_new).is_none_or(&is_kept);
            graph = passes::keep(&graph, |id| is_old_or_kept(id.index()))?;
        }
        Topology::new(&graph).order(&graph)?;
        graph.unavailable = Arc::new(self.unavailable);
        Ok(graph)
    }

    /// Returns for each new node whether it can run, and notes those that cannot.
    fn available(&mut self, inputs: &InputNames) -> Vec<bool> {
        let count = inputs.nodes.len();
        let mut is_available = vec![true; count];
        let broken = self.graph.library.with_missing_ops();
        let mut lost: Vec<(usize, Arc<str>)> = Vec::new();
        if !broken.is_empty() {
            for i in 0..count {
                let node = self.graph.node(NodeId::new(self.first_new + i));
                each_function(&node.attrs, &mut |function| {
                    if let Some(inner) = broken.get(function) {
                        self.unavailable.add_op(&inner.op, &inner.name);
                        lost.push((i, inner.op.clone()));
                    }
                });
            }
        }
        if self.unavailable.is_empty() && lost.is_empty() {
            return is_available;
        }
        let mut consumers: FxHashMap<&str, Vec<usize>> = FxHashMap::default();
        for i in 0..count {
            for producer in inputs.of_node(i).filter_map(producer) {
                match self.unavailable.op_of(producer) {
                    Some(op) => lost.push((i, op.clone())),
                    None => consumers.entry(producer).or_default().push(i),
                }
            }
        }
        while let Some((i, op)) = lost.pop() {
            if std::mem::replace(&mut is_available[i], false) {
                let name = &self.graph.node(NodeId::new(self.first_new + i)).name;
                self.unavailable.add_node(name, &op);
                lost.extend(consumers.remove(&**name).into_iter().flatten().map(|i| (i, op.clone())));
            }
        }
        is_available
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

/// Returns the node that an input names: `name`, `name:port` or `^name`.
fn producer(input: &str) -> Option<&str> {
    let name = input.strip_prefix('^').map(|name| (name, 0));
    name.or_else(|| parse_output_name(input)).map(|(name, _)| name)
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
