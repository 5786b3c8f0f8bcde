//! Calls: nodes under construction. A call matches inputs to the op's signature and fills in the attributes that
//! follow from them (types, counts).

use super::{MISSING_NODE, Scope};
use crate::attr::{AttrValue, Attrs};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{NodeId, Output};
use crate::node::Node;
use crate::ops::spec::{Arg, ArgType};
use crate::ops::{self, Op};
use smallvec::SmallVec;

/// The tensors for one input argument of an op: one tensor, or several if the signature declares a list.
#[derive(Clone, Debug)]
pub enum Argument {
    One(Output),
    Many(Vec<Output>),
}

impl From<Output> for Argument {
    fn from(output: Output) -> Argument {
        Argument::One(output)
    }
}

impl From<&[Output]> for Argument {
    fn from(outputs: &[Output]) -> Argument {
        Argument::Many(outputs.to_vec())
    }
}

impl From<Vec<Output>> for Argument {
    fn from(outputs: Vec<Output>) -> Argument {
        Argument::Many(outputs)
    }
}

/// A node under construction.
#[derive(Debug)]
pub struct Call<'a> {
    scope: &'a Scope,
    op: &'a str,
    name: Option<String>,
    device: Option<String>,
    arguments: SmallVec<[Argument; 3]>,
    attrs: Attrs,
    control: SmallVec<[NodeId; 2]>,
}

impl<'a> Call<'a> {
    pub(super) fn new(scope: &'a Scope, op: &'a str) -> Call<'a> {
        Call {
            scope,
            op,
            name: None,
            device: None,
            arguments: SmallVec::new(),
            attrs: Attrs::new(),
            control: SmallVec::new(),
        }
    }

    /// Sets the next input argument, in the order of the op's signature.
    pub fn input(mut self, argument: impl Into<Argument>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets an attribute.
    pub fn attr(mut self, name: &str, value: impl Into<AttrValue>) -> Self {
        self.attrs.set(name, value);
        self
    }

    /// Returns whether the op has an attribute of this name.
    pub(crate) fn takes_attr(&self, name: &str) -> bool {
        ops::lookup(self.op).is_some_and(|op| op.attr_spec(name).is_some())
    }

    /// Sets the node's name; the default is the op's name.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Sets the node's device; the device scopes fill the parts that `spec` leaves open.
    pub fn device(mut self, spec: &str) -> Self {
        self.device = Some(spec.to_owned());
        self
    }

    /// Adds a control input.
    pub fn after(mut self, node: NodeId) -> Self {
        self.control.push(node);
        self
    }

    /// Adds the node to the graph and returns its id. An error is recorded in the scope.
    pub fn node(self) -> NodeId {
        let scope = self.scope;
        if scope.read(|_, _| ()).is_none() {
            return NodeId::new(MISSING_NODE as usize);
        }
        match self.build() {
            Ok(id) => id,
            Err(error) => {
                scope.fail(error);
                NodeId::new(MISSING_NODE as usize)
            }
        }
    }

    /// Adds the node and returns its first output.
    pub fn output(self) -> Output {
        self.node().into()
    }

    /// Adds the node and returns all its outputs.
    pub fn outputs(self) -> Vec<Output> {
        let scope = self.scope;
        let id = self.node();
        let count = scope.read(|g, _| g.node(id).output_types().map_or(0, |t| t.len())).unwrap_or(0);
        (0..count).map(|i| Output::new(id, i)).collect()
    }

    fn build(mut self) -> Result<NodeId> {
        let name = self.name.clone().unwrap_or_else(|| self.op.trim_start_matches('_').to_owned());
        let op = ops::lookup(self.op).ok_or_else(|| Error::unknown_op(&*name, self.op))?;
        if self.arguments.len() != op.inputs.len() {
            return Err(Error::invalid(format!(
                "{} takes {} arguments, got {}",
                op.name(),
                op.inputs.len(),
                self.arguments.len()
            ))
            .at_node(&name));
        }
        let mut inputs = SmallVec::<[Output; 4]>::new();
        for (arg, argument) in op.inputs.iter().zip(std::mem::take(&mut self.arguments)) {
            let given = match argument {
                Argument::One(output) => vec![output],
                Argument::Many(outputs) => outputs,
            };
            self.fill_attrs(op, arg, &given).map_err(|e| e.at_node(&name))?;
            inputs.extend(given);
        }
        let mut node = Node::new("", op);
        node.attrs = self.attrs;
        if let Some(device) = self.device {
            node.device = device.into();
        }
        self.scope.add_node(&name, node, &inputs, &self.control)
    }

    /// Sets the attributes that follow from the argument's tensors, unless the caller has set them.
    fn fill_attrs(&mut self, op: &'static Op, arg: &Arg, given: &[Output]) -> Result<()> {
        let types: Vec<DType> = self
            .scope
            .read(|g, _| given.iter().map(|o| Ok(g.output_type(*o)?.dtype)).collect::<Result<_>>())
            .unwrap_or(Ok(Vec::new()))?;
        if let Some(number) = arg.number_attr
            && self.attrs.get(number).is_none()
        {
            self.attrs.set(number, given.len() as i64);
        }
        match arg.ty {
            ArgType::List(attr) if self.attrs.get(attr).is_none() => self.attrs.set(attr, types),
            ArgType::Attr(attr) if self.attrs.get(attr).is_none() => {
                if let Some(first) = types.first()
                    && op.attr_spec(attr).and_then(|s| s.default.as_ref()) != Some(&AttrValue::Type(*first))
                {
                    self.attrs.set(attr, *first);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
