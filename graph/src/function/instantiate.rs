//! Instantiation of functions: from a function and its attributes to a graph with `_Arg` and `_Retval` nodes.

use super::{FunctionDef, FunctionLibrary, FunctionNode};
use crate::attr::{AttrList, AttrValue, Attrs, FuncAttr};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::{self, Op};
use crate::topology::Topology;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// A function instantiated for given attributes.
#[derive(Clone, Debug)]
pub struct Body {
    /// The nodes of the body, with an `_Arg` for each argument and a `_Retval` for each output.
    pub graph: Graph,
    /// The `_Arg` nodes in the order of the arguments.
    pub args: Vec<NodeId>,
    /// The `_Retval` nodes in the order of the outputs.
    pub returns: Vec<NodeId>,
    /// The nodes that must run for their side effects, although no output depends on them.
    pub control_returns: Vec<NodeId>,
    pub arg_types: Vec<DType>,
    pub return_types: Vec<DType>,
}

/// The largest depth of functions nested in the attributes of functions (`FuncAttr`), equal to protobuf's limit on
/// nested messages.
const MAX_NESTING: usize = 100;

impl FunctionDef {
    /// Returns the function as a graph: placeholders in attributes are replaced by the values in `attrs` or the
    /// defaults, nodes whose op is a function become calls, and inputs are connected.
    ///
    /// # Errors
    /// `UnknownOp` for an op that does not exist; `InvalidArgument` for missing attributes and unfitting inputs, with
    /// the node's name.
    pub fn instantiate(&self, attrs: &Attrs, library: &Arc<FunctionLibrary>) -> Result<Body> {
        let mut graph = Graph::with_capacity(self.nodes.len() + self.args.len() + self.outputs.len(), 0);
        graph.library = library.clone();
        let mut names = Names::default();
        let (mut args, mut arg_types) = (Vec::new(), Vec::new());
        for (position, arg) in self.args.iter().enumerate() {
            let types = self.types_of(arg, attrs)?;
            let first = args.len();
            for (i, &dtype) in types.iter().enumerate() {
                let own = |n: usize| match n {
                    0 if types.len() == 1 => arg.name.to_string(),
                    0 => format!("{}_{i}", arg.name),
                    n => format!("{}_{i}_{n}", arg.name),
                };
                let said = self.arg_attrs.get(&(position as u32)).filter(|_| types.len() == 1);
                let mut node = Node::new("", lookup(&arg.name, "_Arg")?);
                node.attrs = said.cloned().unwrap_or_default();
                node.attrs.set("T", dtype);
                node.attrs.set("index", args.len() as i64);
                args.push(add_unique(&mut graph, node, own)?);
                arg_types.push(dtype);
            }
            names.args.insert(&arg.name, first..args.len());
        }
        let mut ids = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let id = add_node(self, node, attrs, library, &mut graph, &mut names)?;
            ids.push(id);
        }
        for (node, &id) in self.nodes.iter().zip(&ids) {
            names.connect(&mut graph, &args, id, &node.inputs)?;
        }
        let (mut returns, mut return_types) = (Vec::new(), Vec::new());
        for output in &self.outputs {
            let types = self.types_of(output, attrs)?;
            let source = self.returns.get(&output.name).ok_or_else(|| {
                Error::invalid(format!(
                    "function {} does not say which node makes its output '{}'",
                    self.name, output.name
                ))
            })?;
            let sources = names.outputs(source, &args).ok_or_else(|| {
                Error::invalid(format!("output '{}' of function {}: no '{source}'", output.name, self.name))
            })?;
            if sources.len() != types.len() {
                crate::invalid!(
                    "output '{}' of function {} is {} tensors, '{source}' is {}",
                    output.name,
                    self.name,
                    types.len(),
                    sources.len()
                );
            }
            for (&dtype, source) in types.iter().zip(sources) {
                let node = Node::new("", lookup(&output.name, "_Retval")?)
                    .with_attr("T", dtype)
                    .with_attr("index", returns.len() as i64);
                let id = add_unique(&mut graph, node, |n| match n {
                    0 => format!("{}_RetVal", output.name),
                    n => format!("{}_{n}_RetVal", output.name),
                })?;
                graph.connect(source, id, 0);
                returns.push(id);
                return_types.push(dtype);
            }
        }
        let mut control_returns = Vec::with_capacity(self.control_returns.len());
        for (name, node) in &self.control_returns {
            control_returns.push(graph.find(node).ok_or_else(|| {
                Error::invalid(format!("control output '{name}' of function {}: no node '{node}'", self.name))
            })?);
        }
        for id in graph.ids() {
            graph.check_inputs(id)?;
        }
        Topology::new(&graph).order(&graph)?;
        Ok(Body { graph, args, returns, control_returns, arg_types, return_types })
    }
}

impl Body {
    /// Returns the nodes that a call must run: all stateful nodes, among them `_Arg` and `_Retval`, and the control
    /// returns.
    pub fn required_nodes(&self) -> Vec<NodeId> {
        let has_effect = |id: &NodeId| self.graph.node(*id).op.is_stateful();
        self.graph.ids().filter(has_effect).chain(self.control_returns.iter().copied()).collect()
    }
}

fn lookup(node: &str, op: &str) -> Result<&'static Op> {
    ops::lookup(op).ok_or_else(|| Error::unknown_op(node, op))
}

/// Adds the node under the first of the names `name(0)`, `name(1)`, … that no other node has.
fn add_unique(graph: &mut Graph, mut node: Node, name: impl Fn(usize) -> String) -> Result<NodeId> {
    let mut n = 0;
    loop {
        let candidate = name(n);
        if graph.find(&candidate).is_none() {
            node.name = candidate.into();
            return graph.add_unconnected(node);
        }
        n += 1;
    }
}

/// Adds a node of the body: an op with its attributes, or a call of a library function.
fn add_node<'a>(
    function: &'a FunctionDef,
    node: &'a FunctionNode,
    attrs: &Attrs,
    library: &'a FunctionLibrary,
    graph: &mut Graph,
    names: &mut Names<'a>,
) -> Result<NodeId> {
    let own = substitute(function, &node.attrs, attrs).map_err(|e| e.at_node(&node.name))?;
    let mut made = match (ops::lookup(&node.op), library.get(&node.op)) {
        (Some(op), _) => {
            let mut made = Node::new(node.name.clone(), op);
            made.attrs = own;
            let mut first = 0;
            for arg in &op.outputs {
                let count = op.arg_count(arg, &made.attrs).map_err(|e| e.at_node(&node.name))?;
                names.add_output(&node.name, arg.name, first..first + count);
                first += count;
            }
            made
        }
        (None, Some(callee)) => {
            let mut first = 0;
            for output in &callee.outputs {
                let count = callee.types_of(output, &own).map_err(|e| e.at_node(&node.name))?.len();
                names.add_output(&node.name, &output.name, first..first + count);
                first += count;
            }
            callee.call_node(&node.name, &own)?
        }
        (None, None) => {
            return Err(Error::unknown_op(&*node.name, &*node.op));
        }
    };
    made.device = node.device.clone();
    made.opaque = node.opaque.clone();
    let id = graph.add_unconnected(made)?;
    names.nodes.insert(&node.name, id);
    Ok(id)
}

/// The names of a node's outputs, each with its range of ports.
type NodeOutputs<'a> = SmallVec<[(&'a str, Range<usize>); 1]>;

/// The tables that resolve the input names of a function body.
#[derive(Default)]
struct Names<'a> {
    /// For each argument, the range of its tensors in the list of all argument tensors.
    args: FxHashMap<&'a str, Range<usize>>,
    nodes: FxHashMap<&'a str, NodeId>,
    /// For each node, the names and port ranges of its outputs.
    outputs: FxHashMap<&'a str, NodeOutputs<'a>>,
}

impl<'a> Names<'a> {
    fn add_output(&mut self, node: &'a str, output: &'a str, ports: Range<usize>) {
        self.outputs.entry(node).or_default().push((output, ports));
    }

    /// Resolves an input name of one of the forms `argument`, `argument:index`, `node:output` and `node:output:index`.
    fn outputs(&self, text: &str, args: &[NodeId]) -> Option<SmallVec<[Output; 1]>> {
        let of_args = |range: Range<usize>| range.map(|i| Output::new(args[i], 0)).collect();
        if let Some(range) = self.args.get(text) {
            return Some(of_args(range.clone()));
        }
        let mut parts = text.split(':');
        let (first, second, third) = (parts.next()?, parts.next()?, parts.next());
        let index = |text: &str, range: &Range<usize>| {
            let index: usize = text.parse().ok()?;
            range.clone().nth(index)
        };
        match (self.args.get(first), third) {
            (Some(range), None) => {
                let at = index(second, range)?;
                Some(of_args(at..at + 1))
            }
            _ => {
                let node = *self.nodes.get(first)?;
                let (_, range) = self.outputs.get(first)?.iter().find(|(name, _)| *name == second)?;
                match third {
                    None => Some(range.clone().map(|i| Output::new(node, i)).collect()),
                    Some(text) => Some([Output::new(node, index(text, range)?)].into_iter().collect()),
                }
            }
        }
    }

    /// Connects the inputs of one node.
    fn connect(&self, graph: &mut Graph, args: &[NodeId], id: NodeId, inputs: &[Arc<str>]) -> Result<()> {
        let mut slot = 0;
        let mut control_seen = false;
        for input in inputs {
            let unknown = |graph: &Graph| Error::UnknownInput {
                node: graph.node(id).name.to_string(),
                input: input.to_string(),
            };
            if let Some(name) = input.strip_prefix('^') {
                let of_arg = || self.args.get(name).and_then(|range| args.get(range.start)).copied();
                let from = self.nodes.get(name).copied().or_else(of_arg).ok_or_else(|| unknown(graph))?;
                graph.connect_control(from, id);
                control_seen = true;
                continue;
            }
            if control_seen {
                return Err(Error::invalid(format!(
                    "Node '{}': data input '{input}' comes after a control input",
                    graph.node(id).name
                )));
            }
            for output in self.outputs(input, args).ok_or_else(|| unknown(graph))? {
                graph.connect(output, id, slot);
                slot += 1;
            }
        }
        Ok(())
    }
}

/// Returns the attributes with placeholders replaced by the attributes of the call.
fn substitute(function: &FunctionDef, attrs: &Attrs, call: &Attrs) -> Result<Attrs> {
    if !attrs.iter().any(|(_, value)| may_hold_placeholder(value)) {
        return Ok(attrs.clone());
    }
    substitute_at_depth(function, attrs, call, 0)
}

fn may_hold_placeholder(value: &AttrValue) -> bool {
    matches!(value, AttrValue::Placeholder(_) | AttrValue::Func(_) | AttrValue::List(AttrList::Func(_)))
}

fn substitute_at_depth(function: &FunctionDef, attrs: &Attrs, call: &Attrs, depth: usize) -> Result<Attrs> {
    if depth > MAX_NESTING {
        crate::invalid!("attributes of functions in function {} nest too deep", function.name);
    }
    let callee = |f: &FuncAttr| -> Result<FuncAttr> {
        Ok(FuncAttr {
            name: f.name.clone(),
            attrs: substitute_at_depth(function, &f.attrs, call, depth + 1)?,
        })
    };
    let replace = |(name, value): (&Arc<str>, &AttrValue)| {
        let value = match value {
            AttrValue::Placeholder(of) => function.attr_value(call, of)?.clone(),
            AttrValue::Func(f) => AttrValue::Func(callee(f)?),
            AttrValue::List(AttrList::Func(all)) => {
                AttrValue::List(AttrList::Func(all.iter().map(callee).collect::<Result<_>>()?))
            }
            other => other.clone(),
        };
        Ok((name.clone(), value))
    };
    attrs.iter().map(replace).collect()
}
