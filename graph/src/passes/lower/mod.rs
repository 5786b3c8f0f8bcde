//! Calls of functions become the nodes of their bodies, gradients of functions those of the bodies' gradients, and
//! control flow over functions becomes Switch, Merge and loops: so that bodies are placed, split and optimised as
//! everything else is.
//!
//! What calls itself, by whatever way, is left to the kernels that call; so is what forbids it (`_noinline`), unless its
//! nodes ask for devices ([`choice`]).

mod call;
mod choice;
mod control_flow;
mod gradient;

use super::checked;
use crate::assemble::Edge;
use crate::attr::{AttrValue, FuncAttr};
use crate::dtype::{DType, PortType};
use crate::error::Result;
use crate::function::Body;
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::{self, Op, Role};
use crate::topology::Topology;
use choice::{Choice, Kind};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// A graph is grown to no more nodes than this; calls beyond it are left to kernels.
const MAX_NODES: usize = 2_000_000;

/// On what stands for a node that was lowered.
const STANDS_FOR_LOWERED: &str = "_stands_for_lowered";

/// Whether the node stands for one that was lowered: whoever feeds or fetches outputs of that means this one's. Who
/// plans a step takes each output that is not fed from where it comes, input by input; only what asks for the node
/// itself waits for all that it did.
pub fn stands_for_lowered(node: &Node) -> bool {
    matches!(node.attrs.get(STANDS_FOR_LOWERED), Some(AttrValue::Bool(true)))
}

/// The graph with what can be lowered lowered. A node that was lowered keeps its name: what is in its place
/// ([`stands_for_lowered`]) gives the same outputs.
///
/// # Errors
/// What is wrong with a body, with the name of the node that calls it.
pub fn lower(graph: &Graph) -> Result<Graph> {
    lower_chosen(graph, Choice::new(&graph.library, false))
}

/// As [`lower`], of those alone whose nodes ask for devices: where calls are to stay calls.
///
/// # Errors
/// Those of [`lower`].
pub fn lower_placed(graph: &Graph) -> Result<Graph> {
    lower_chosen(graph, Choice::new(&graph.library, true))
}

fn lower_chosen(graph: &Graph, choice: Choice) -> Result<Graph> {
    if !graph.nodes().any(|(_, node)| choice.of(node).is_some()) {
        return Ok(graph.clone());
    }
    let mut draft = Draft::new(graph, choice);
    let mut next = 0;
    while next < draft.nodes.len() && draft.nodes.len() < MAX_NODES {
        let id = NodeId::new(next);
        next += 1;
        let node = &draft.nodes[id.index()];
        let Some(kind) = draft.choice.of(node) else { continue };
        let name = node.name.clone();
        let lowered = match kind {
            Kind::Call => draft.inline(id),
            Kind::If => draft.lower_branches(id, &["else_branch", "then_branch"]),
            Kind::Case => draft.lower_branches(id, &[]),
            Kind::While => draft.lower_loop(id),
            Kind::Gradient => draft.lower_gradient(id),
        };
        lowered.map_err(|e| e.at_node(&name))?;
    }
    draft.finish(graph)
}

/// A graph that changes.
struct Draft<'a> {
    graph: &'a Graph,
    choice: Choice,
    nodes: Vec<Node>,
    inputs: Vec<Vec<Output>>,
    controls: Vec<Vec<NodeId>>,
    /// Which functions each added node is within.
    within: Vec<Option<Arc<Within>>>,
    names: FxHashSet<Arc<str>>,
    /// What stands for an output, or for the end, of a node that was lowered.
    outputs: FxHashMap<Output, Output>,
    ends: FxHashMap<NodeId, NodeId>,
    bodies: FxHashMap<Arc<str>, Vec<(FuncAttr, Arc<Body>)>>,
    /// Some node steers: a node without inputs may not run wherever its body is.
    has_flow: bool,
}

struct Within {
    function: FuncAttr,
    outer: Option<Arc<Within>>,
}

impl<'a> Draft<'a> {
    fn new(graph: &'a Graph, choice: Choice) -> Draft<'a> {
        let topology = Topology::new(graph);
        let mut draft = Draft {
            graph,
            choice,
            nodes: Vec::with_capacity(graph.len()),
            inputs: Vec::with_capacity(graph.len()),
            controls: Vec::with_capacity(graph.len()),
            within: Vec::with_capacity(graph.len()),
            names: graph.nodes().map(|(_, node)| node.name.clone()).collect(),
            outputs: FxHashMap::default(),
            ends: FxHashMap::default(),
            bodies: FxHashMap::default(),
            has_flow: false,
        };
        for (id, node) in graph.nodes() {
            let producers = topology.producers(id);
            let data = producers.iter().filter(|p| !p.is_control()).map(|p| p.source()).collect();
            let control = producers.iter().filter(|p| p.is_control()).map(|p| p.node).collect();
            draft.put(node.clone(), data, control, None);
        }
        draft
    }

    fn put(
        &mut self,
        node: Node,
        inputs: Vec<Output>,
        controls: Vec<NodeId>,
        within: Option<Arc<Within>>,
    ) -> NodeId {
        self.has_flow |= matches!(node.op.role(), Role::Switch | Role::Enter);
        self.nodes.push(node);
        self.inputs.push(inputs);
        self.controls.push(controls);
        self.within.push(within);
        NodeId::new(self.nodes.len() - 1)
    }

    /// Adds a node of `of`, on its device, under its name and `part`.
    fn add(
        &mut self,
        of: NodeId,
        part: &str,
        op: &str,
        attrs: &[(&str, AttrValue)],
        inputs: Vec<Output>,
        controls: Vec<NodeId>,
    ) -> Result<NodeId> {
        let owner = &self.nodes[of.index()];
        let (device, prefix) = (owner.device.clone(), owner.name.clone());
        let mut node = Node::new(self.fresh(&format!("{prefix}/{part}")), lookup(op)?);
        node.device = device;
        for (name, value) in attrs {
            node.attrs.set(name, value.clone());
        }
        let within = self.within[of.index()].clone();
        Ok(self.put(node, inputs, controls, within))
    }

    /// A name that no node has.
    fn fresh(&mut self, wanted: &str) -> Arc<str> {
        let mut name: Arc<str> = wanted.into();
        let mut n = 0;
        while !self.names.insert(name.clone()) {
            n += 1;
            name = format!("{wanted}_{n}").into();
        }
        name
    }

    /// What is there now for an output: what it was lowered to, if the client cannot name it, or feed it.
    fn resolve(&self, mut output: Output) -> Output {
        while let Some(&other) = self.outputs.get(&output) {
            let is_fed = |port: PortType| port.dtype != DType::Resource;
            if output.node.index() < self.graph.len() && self.type_of(output).is_ok_and(is_fed) {
                break;
            }
            output = other;
        }
        output
    }

    /// Whether the node was lowered, or may yet be.
    fn is_call(&self, id: NodeId) -> bool {
        self.ends.contains_key(&id) || self.choice.of(&self.nodes[id.index()]).is_some()
    }

    /// The type of an output as it stands.
    fn type_of(&self, output: Output) -> Result<PortType> {
        let node = &self.nodes[output.node.index()];
        let types = node.output_types()?;
        let found = types.get(output.index as usize).copied();
        found.ok_or_else(|| {
            crate::error::Error::invalid(format!("{} has no output {}", node.name, output.index))
        })
    }

    /// The inputs of a node, each a value: a reference is read first, once for all.
    fn values(&mut self, id: NodeId) -> Result<Vec<Output>> {
        let inputs: Vec<Output> = self.inputs[id.index()].iter().map(|o| self.resolve(*o)).collect();
        let controls = self.controls[id.index()].clone();
        let mut values = Vec::with_capacity(inputs.len());
        for input in inputs {
            let port = self.type_of(input)?;
            values.push(if port.is_ref {
                let attrs = [("T", port.dtype.into())];
                self.add(id, "input", "Identity", &attrs, vec![input], controls.clone())?.into()
            } else {
                input
            });
        }
        Ok(values)
    }

    /// Puts what stands for it in the place of a lowered node. `ran`: what has to have run when the node is said to
    /// have run.
    fn replace(&mut self, id: NodeId, outputs: Vec<Output>, mut ran: Vec<NodeId>) -> Result<()> {
        ran.extend(outputs.iter().map(|o| o.node));
        ran.sort_unstable();
        ran.dedup();
        let end = self.add(id, "output_control_node", "NoOp", &[], Vec::new(), ran)?;
        let mut types = Vec::with_capacity(outputs.len());
        for (i, output) in outputs.iter().enumerate() {
            types.push(self.type_of(*output)?.dtype);
            self.outputs.insert(Output::new(id, i), *output);
        }
        self.ends.insert(id, end);
        let old = &self.nodes[id.index()];
        let mut node =
            Node::new(old.name.clone(), lookup(if types.is_empty() { "NoOp" } else { "IdentityN" })?);
        node.device = old.device.clone();
        if let Some(class) = old.attrs.get("_class") {
            node.attrs.set("_class", class.clone());
        }
        if !types.is_empty() {
            node.attrs.set("T", types);
            node.attrs.set(STANDS_FOR_LOWERED, true);
        }
        self.nodes[id.index()] = node;
        self.inputs[id.index()] = outputs;
        self.controls[id.index()] = vec![end];
        Ok(())
    }

    fn finish(self, graph: &Graph) -> Result<Graph> {
        let mut edges = Vec::new();
        for (i, (inputs, controls)) in self.inputs.iter().zip(&self.controls).enumerate() {
            let to = NodeId::new(i);
            for (slot, input) in inputs.iter().enumerate() {
                edges.push(Edge::data(self.resolve(*input), to, slot as u32));
            }
            let mut seen = FxHashSet::default();
            for control in controls {
                let from =
                    self.ends.get(control).filter(|end| **end != to && *control != to).unwrap_or(control);
                if seen.insert(*from) {
                    edges.push(Edge::control(*from, to));
                }
            }
        }
        checked(Graph::assemble(self.nodes, edges.into_iter())?.with_settings_of(graph))
    }
}

fn lookup(name: &str) -> Result<&'static Op> {
    ops::lookup(name)
        .ok_or_else(|| crate::error::Error::UnknownOp { node: "lowered".to_owned(), op: name.to_owned() })
}
