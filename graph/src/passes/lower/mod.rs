//! Lowering: calls become the nodes of the called bodies, gradients of functions become backward passes, and functional
//! control flow becomes Switch, Merge and loop frames. The nodes of bodies can then be placed, partitioned and
//! optimised like all other nodes.
//!
//! Recursive calls are left to kernels that execute calls. Calls of functions that forbid inlining (`_noinline`) are
//! left to kernels too, unless their nodes ask for devices ([`choice`]).

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
use choice::{LoweredKind, LoweringChoice};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The number of graph nodes at which lowering stops; kernels execute the remaining calls.
const MAX_NODES: usize = 2_000_000;

/// The boolean attribute that marks a node as the replacement of a lowered node.
const STANDS_FOR_LOWERED: &str = "_stands_for_lowered";

/// Returns whether the node replaces a lowered node, so that feeds and fetches of the lowered node apply to the node's
/// outputs. The planner reads the input of the node that corresponds to an output, unless the output is fed, so only a
/// step with the node as a target waits for all side effects of the lowered node.
pub fn replaces_lowered_node(node: &Node) -> bool {
    matches!(node.attrs.get(STANDS_FOR_LOWERED), Some(AttrValue::Bool(true)))
}

/// Returns the graph in which all nodes that can be lowered are lowered. The replacement of a lowered node
/// ([`replaces_lowered_node`]) has its name and outputs.
///
/// # Errors
/// The errors of instantiating a body, with the name of the calling node.
pub fn lower(graph: &Graph) -> Result<Graph> {
    lower_chosen(graph, LoweringChoice::new(&graph.library, false))
}

/// Like [`lower`], but lowers only calls of functions whose nodes ask for devices; other calls stay calls.
///
/// # Errors
/// The errors of [`lower`].
pub fn lower_placed(graph: &Graph) -> Result<Graph> {
    lower_chosen(graph, LoweringChoice::new(&graph.library, true))
}

/// Lowers the chosen nodes one after the other, including nodes that lowering itself adds.
fn lower_chosen(graph: &Graph, choice: LoweringChoice) -> Result<Graph> {
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
            LoweredKind::Call => draft.inline(id),
            LoweredKind::If => draft.lower_branches(id, &["else_branch", "then_branch"]),
            LoweredKind::Case => draft.lower_branches(id, &[]),
            LoweredKind::While => draft.lower_loop(id),
            LoweredKind::Gradient => draft.lower_gradient(id),
        };
        lowered.map_err(|e| e.at_node(&name))?;
    }
    draft.finish(graph)
}

/// A graph that grows while its nodes are lowered.
struct Draft<'a> {
    graph: &'a Graph,
    choice: LoweringChoice,
    nodes: Vec<Node>,
    inputs: Vec<Vec<Output>>,
    controls: Vec<Vec<NodeId>>,
    /// For each node, the innermost function whose body the node is from; `None` for nodes of the original graph.
    within: Vec<Option<Arc<EnclosingFunction>>>,
    names: FxHashSet<Arc<str>>,
    /// For each output of a lowered node, the output that replaces it.
    outputs: FxHashMap<Output, Output>,
    /// For each lowered node, the node that runs after all its side effects.
    ends: FxHashMap<NodeId, NodeId>,
    bodies: FxHashMap<Arc<str>, Vec<(FuncAttr, Arc<Body>)>>,
    /// True if the graph had Switch or Enter nodes before any node was lowered.
    began_with_flow: bool,
    /// True if the graph has Switch or Enter nodes, so that an inlined node without inputs needs a control input in
    /// order to run in the loop frame and iteration of its body.
    has_flow: bool,
}

/// A function whose body contains inlined nodes, and the function whose body contains the call.
struct EnclosingFunction {
    function: FuncAttr,
    outer: Option<Arc<EnclosingFunction>>,
}

impl<'a> Draft<'a> {
    fn new(graph: &'a Graph, choice: LoweringChoice) -> Draft<'a> {
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
            began_with_flow: false,
            has_flow: false,
        };
        for (id, node) in graph.nodes() {
            let producers = topology.producers(id);
            let data = producers.iter().filter(|p| !p.is_control()).map(|p| p.source()).collect();
            let control = producers.iter().filter(|p| p.is_control()).map(|p| p.node).collect();
            draft.push_node(node.clone(), data, control, None);
        }
        draft.began_with_flow = draft.has_flow;
        draft
    }

    /// Appends a node with its data inputs and control inputs.
    fn push_node(
        &mut self,
        node: Node,
        inputs: Vec<Output>,
        controls: Vec<NodeId>,
        within: Option<Arc<EnclosingFunction>>,
    ) -> NodeId {
        self.has_flow |= matches!(node.op.role(), Role::Switch | Role::Enter);
        self.nodes.push(node);
        self.inputs.push(inputs);
        self.controls.push(controls);
        self.within.push(within);
        NodeId::new(self.nodes.len() - 1)
    }

    /// Adds a node for the lowering of the node `of`: on the device of `of`, and with the name `part` under the name of
    /// `of`.
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
        let mut node = Node::new(self.reserve_name(&format!("{prefix}/{part}")), lookup(op)?);
        node.device = device;
        for (name, value) in attrs {
            node.attrs.set(name, value.clone());
        }
        let within = self.within[of.index()].clone();
        Ok(self.push_node(node, inputs, controls, within))
    }

    /// Returns `wanted` or, if another node has that name, `wanted` with a number, and reserves the name.
    fn reserve_name(&mut self, wanted: &str) -> Arc<str> {
        let mut name: Arc<str> = wanted.into();
        let mut n = 0;
        while !self.names.insert(name.clone()) {
            n += 1;
            name = format!("{wanted}_{n}").into();
        }
        name
    }

    /// Returns the output that replaces an output of a lowered node. Outputs of nodes of the original graph are
    /// returned unchanged, except for resource handles, because the client can feed such outputs by name.
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

    /// Returns whether the node is a call that has been lowered or is going to be lowered.
    fn is_call(&self, id: NodeId) -> bool {
        self.ends.contains_key(&id) || self.choice.of(&self.nodes[id.index()]).is_some()
    }

    /// Returns the type of an output.
    fn type_of(&self, output: Output) -> Result<PortType> {
        let node = &self.nodes[output.node.index()];
        let types = node.output_types()?;
        let found = types.get(output.index as usize).copied();
        found.ok_or_else(|| {
            crate::error::Error::invalid(format!("{} has no output {}", node.name, output.index))
        })
    }

    /// Returns the inputs of a node as values. A reference is read once through an Identity, so that all readers see
    /// the same value.
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

    /// Replaces a lowered node by an IdentityN of `outputs` with the same name. The lowered node is complete when the
    /// nodes `ran` and the producers of `outputs` have run.
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
    ops::lookup(name).ok_or_else(|| crate::error::Error::unknown_op("lowered", name))
}
