//! Functions: named graphs with arguments and results that nodes can call. A FunctionDef is stored unchanged,
//! including bodies that are never called and ops that this crate does not have; [`FunctionDef::instantiate`]
//! converts a body to a graph.

mod instantiate;

pub use instantiate::Body;

use crate::attr::{AttrValue, Attrs, FromAttr, FuncAttr};
use crate::dtype::{DType, PortType};
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::node::Node;
use crate::ops;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A function definition, in the form of TensorFlow's `FunctionDef`: the attributes of its nodes may refer to the
/// attributes that a caller sets.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FunctionDef {
    pub name: Arc<str>,
    pub args: Vec<ArgDef>,
    pub outputs: Vec<ArgDef>,
    /// The attributes that a caller may or must set.
    pub attr_defs: Vec<AttrDef>,
    pub is_stateful: bool,
    /// The names of the control outputs, in order.
    pub control_outputs: Vec<Arc<str>>,
    pub nodes: Vec<FunctionNode>,
    /// For each output, the name of the value that the function returns: an argument, or `node:output:index`.
    pub returns: BTreeMap<Arc<str>, Arc<str>>,
    /// For each control output, the name of the node that must have run.
    pub control_returns: BTreeMap<Arc<str>, Arc<str>>,
    /// The attributes of the function definition itself.
    pub attrs: Attrs,
    /// The attributes of the arguments, by position.
    pub arg_attrs: BTreeMap<u32, Attrs>,
    /// Serialized fields that this crate does not interpret and writes back unchanged; mostly absent.
    pub opaque: Option<Arc<[u8]>>,
}

/// An argument or output of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct ArgDef {
    pub name: Arc<str>,
    pub ty: ArgDefType,
    /// The name of the attribute that holds the number of tensors of type `ty`.
    pub number_attr: Option<Arc<str>>,
    pub is_ref: bool,
    pub opaque: Option<Arc<[u8]>>,
}

/// The element type of an argument or output, either fixed or set by an attribute of the function.
#[derive(Clone, Debug, PartialEq)]
pub enum ArgDefType {
    Fixed(DType),
    /// The name of the attribute that holds the type.
    Attr(Arc<str>),
    /// The name of the attribute that holds a list of types, one per tensor.
    List(Arc<str>),
}

/// An attribute that callers of a function set.
#[derive(Clone, Debug, PartialEq)]
pub struct AttrDef {
    pub name: Arc<str>,
    /// The attribute's kind in the notation of op definitions: `type`, `list(int)`.
    pub kind: Arc<str>,
    pub default: Option<AttrValue>,
    pub opaque: Option<Arc<[u8]>>,
}

/// A node of a function body. Its op may be the name of a function, or an op that this crate does not have.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FunctionNode {
    pub name: Arc<str>,
    pub op: Arc<str>,
    pub device: Arc<str>,
    pub attrs: Attrs,
    /// Each input is an argument `name` or `name:index`, an output `node:output:index`, or `^node`.
    pub inputs: Vec<Arc<str>>,
    pub opaque: Option<Arc<[u8]>>,
}

impl FunctionDef {
    /// Returns a function without arguments, outputs and nodes.
    pub fn new(name: impl Into<Arc<str>>) -> FunctionDef {
        FunctionDef { name: name.into(), ..FunctionDef::default() }
    }

    /// Returns whether a boolean attribute of the function definition is set to true.
    pub fn has_flag(&self, name: &str) -> bool {
        matches!(self.attrs.get(name), Some(AttrValue::Bool(true)))
    }

    /// Returns the types of all argument tensors under these attributes.
    ///
    /// # Errors
    /// `InvalidArgument` if an attribute is missing or of another kind.
    pub fn arg_types(&self, attrs: &Attrs) -> Result<Vec<DType>> {
        self.flat_types(&self.args, attrs)
    }

    /// Returns the types of all output tensors under these attributes.
    ///
    /// # Errors
    /// The errors of [`FunctionDef::arg_types`].
    pub fn output_types(&self, attrs: &Attrs) -> Result<Vec<DType>> {
        self.flat_types(&self.outputs, attrs)
    }

    fn flat_types(&self, args: &[ArgDef], attrs: &Attrs) -> Result<Vec<DType>> {
        let mut all = Vec::with_capacity(args.len());
        for arg in args {
            all.extend(self.types_of(arg, attrs)?);
        }
        Ok(all)
    }

    /// Returns the types of the tensors of one argument or output.
    pub(crate) fn types_of(&self, arg: &ArgDef, attrs: &Attrs) -> Result<Vec<DType>> {
        let dtype = match &arg.ty {
            ArgDefType::List(name) => return self.attr(attrs, name),
            ArgDefType::Attr(name) => self.attr::<DType>(attrs, name)?,
            ArgDefType::Fixed(dtype) => *dtype,
        };
        let count = match &arg.number_attr {
            None => 1,
            Some(name) => {
                let count = self.attr::<i64>(attrs, name)?;
                usize::try_from(count).ok().filter(|n| *n <= ops::MAX_PORTS).ok_or_else(|| {
                    Error::invalid(format!("attr '{name}' of function {} is {count}", self.name))
                })?
            }
        };
        Ok(vec![dtype; count])
    }

    fn attr<T: FromAttr>(&self, attrs: &Attrs, name: &str) -> Result<T> {
        crate::attr::read(name, self.attr_value(attrs, name)?)
    }

    /// Returns the value that the caller set for an attribute, or the attribute's default.
    pub(crate) fn attr_value<'a>(&'a self, attrs: &'a Attrs, name: &str) -> Result<&'a AttrValue> {
        let default = || self.attr_defs.iter().find(|a| *a.name == *name)?.default.as_ref();
        attrs.get(name).or_else(default).ok_or_else(|| {
            Error::invalid(format!("function {} is called without its attr '{name}'", self.name))
        })
    }

    /// Returns a node that calls the function: a `StatefulPartitionedCall` for a stateful function, otherwise a
    /// `PartitionedCall`.
    ///
    /// # Errors
    /// `InvalidArgument` if an attribute is missing or of another kind.
    pub fn call_node(&self, name: &str, attrs: &Attrs) -> Result<Node> {
        let op = if self.is_stateful { "StatefulPartitionedCall" } else { "PartitionedCall" };
        let op = ops::lookup(op).ok_or_else(|| Error::unknown_op(name, op))?;
        let at_node = |e: Error| e.at_node(name);
        let mut node = Node::new(name, op)
            .with_attr("Tin", self.arg_types(attrs).map_err(at_node)?)
            .with_attr("Tout", self.output_types(attrs).map_err(at_node)?);
        let mut of_function = Attrs::new();
        for (key, value) in attrs.iter() {
            if self.attr_defs.iter().any(|a| a.name == *key) {
                of_function.set(key, value.clone());
            } else {
                node.attrs.set(key, value.clone());
            }
        }
        node.attrs.set("f", FuncAttr { name: self.name.clone(), attrs: of_function });
        Ok(node)
    }
}

impl ArgDef {
    /// Returns an argument or output of one tensor.
    pub fn new(name: impl Into<Arc<str>>, ty: ArgDefType) -> ArgDef {
        ArgDef { name: name.into(), ty, number_attr: None, is_ref: false, opaque: None }
    }

    /// Returns the port type, if the argument is one tensor of a fixed type.
    pub fn fixed_port(&self) -> Option<PortType> {
        match (&self.ty, &self.number_attr) {
            (ArgDefType::Fixed(dtype), None) => Some(PortType { dtype: *dtype, is_ref: self.is_ref }),
            _ => None,
        }
    }
}

/// The functions of a graph by name, in the order of their addition, and the gradients of functions.
#[derive(Clone, Debug, Default)]
pub struct FunctionLibrary {
    functions: Vec<Arc<FunctionDef>>,
    by_name: FxHashMap<Arc<str>, usize>,
    /// Pairs of a function and its gradient function.
    gradients: Vec<(Arc<str>, Arc<str>)>,
    /// Pairs of a gradient function and the name of the op whose gradient it is registered as.
    registered_gradients: Vec<(Arc<str>, Arc<str>)>,
}

impl FunctionLibrary {
    /// Returns whether there are no functions and no gradients.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty() && self.gradients.is_empty() && self.registered_gradients.is_empty()
    }

    /// Returns the function with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<FunctionDef>> {
        self.by_name.get(name).map(|&i| &self.functions[i])
    }

    /// Returns the function with this name, or a `NotFound` error that names it.
    pub fn lookup(&self, name: &str) -> Result<&Arc<FunctionDef>> {
        self.get(name).ok_or_else(|| Error::Invalid {
            code: crate::Code::NotFound,
            message: format!("Function {name} is not defined."),
        })
    }

    /// Returns all functions in the order of their addition.
    pub fn functions(&self) -> &[Arc<FunctionDef>] {
        &self.functions
    }

    /// Returns the pairs of a function and its gradient function.
    pub fn gradients(&self) -> &[(Arc<str>, Arc<str>)] {
        &self.gradients
    }

    /// Returns the pairs of a gradient function and the op that it is registered for.
    pub fn registered_gradients(&self) -> &[(Arc<str>, Arc<str>)] {
        &self.registered_gradients
    }

    /// Adds a function. Adding an equal function again is allowed.
    ///
    /// # Errors
    /// `InvalidArgument` if a different function has the name.
    pub fn add(&mut self, function: impl Into<Arc<FunctionDef>>) -> Result<()> {
        let function = function.into();
        match self.get(&function.name) {
            Some(known) if **known == *function => Ok(()),
            Some(_) => Err(Error::invalid(format!(
                "Cannot add function '{}' because a different function with the same name already exists.",
                function.name
            ))),
            None => {
                self.by_name.insert(function.name.clone(), self.functions.len());
                self.functions.push(function);
                Ok(())
            }
        }
    }

    /// Records `gradient` as the gradient function of `function`.
    ///
    /// # Errors
    /// `InvalidArgument` if the function has another gradient.
    pub fn add_gradient(&mut self, function: &Arc<str>, gradient: &Arc<str>) -> Result<()> {
        match self.gradients.iter().find(|(f, _)| f == function) {
            Some((_, known)) if known == gradient => Ok(()),
            Some((_, known)) => Err(Error::invalid(format!(
                "Cannot assign gradient function '{gradient}' to '{function}' because it already has gradient \
                 function '{known}'"
            ))),
            None => {
                self.gradients.push((function.clone(), gradient.clone()));
                Ok(())
            }
        }
    }

    /// Records `gradient` as the function that computes the gradient of the op.
    pub fn add_registered_gradient(&mut self, gradient: &Arc<str>, op: &Arc<str>) {
        let pair = (gradient.clone(), op.clone());
        if !self.registered_gradients.contains(&pair) {
            self.registered_gradients.push(pair);
        }
    }

    /// Adds all functions and gradients of another library.
    ///
    /// # Errors
    /// `InvalidArgument` for a function or a gradient that contradicts an existing one.
    pub fn extend(&mut self, other: &FunctionLibrary) -> Result<()> {
        other.functions.iter().try_for_each(|f| self.add(f.clone()))?;
        other.gradients.iter().try_for_each(|(f, g)| self.add_gradient(f, g))?;
        other.registered_gradients.iter().for_each(|(g, op)| self.add_registered_gradient(g, op));
        Ok(())
    }

    /// Returns the functions that cannot run because an op is missing, in their own bodies or in functions that they
    /// call, each with a node of that op.
    pub(crate) fn with_missing_ops(&self) -> FxHashMap<&str, &FunctionNode> {
        let is_missing = |op: &str| ops::lookup(op).is_none() && self.get(op).is_none();
        let mut found: FxHashMap<&str, &FunctionNode> = FxHashMap::default();
        let mut open: Vec<&str> = Vec::new();
        for function in &self.functions {
            if let Some(node) = function.nodes.iter().find(|node| is_missing(&node.op)) {
                found.insert(&function.name, node);
                open.push(&function.name);
            }
        }
        if open.is_empty() {
            return found;
        }
        let callers = self.callers();
        while let Some(name) = open.pop() {
            let node = found[name];
            for &caller in callers.get(name).into_iter().flatten() {
                if !found.contains_key(caller) {
                    found.insert(caller, node);
                    open.push(caller);
                }
            }
        }
        found
    }

    /// Returns the functions that call each function.
    fn callers(&self) -> FxHashMap<&str, Vec<&str>> {
        let mut callers: FxHashMap<&str, Vec<&str>> = FxHashMap::default();
        for function in &self.functions {
            let mut add = |callee: &str| {
                if let Some(callee) = self.get(callee) {
                    callers.entry(&callee.name).or_default().push(&function.name);
                }
            };
            for node in &function.nodes {
                add(&node.op);
                each_function(&node.attrs, &mut add);
            }
        }
        callers
    }

    /// Returns the name of an op in `function`, or in a function that it calls, whose kernel has state or side effects;
    /// `None` if there is none. Excluded are `Assert`, ops that make datasets, and ops that call functions.
    pub fn stateful_op(&self, function: &FunctionDef) -> Option<Arc<str>> {
        let (mut seen, mut open): (FxHashSet<&str>, Vec<&FunctionDef>) =
            (FxHashSet::default(), vec![function]);
        while let Some(function) = open.pop() {
            for node in &function.nodes {
                let mut calls = false;
                let mut add = |callee: &str| {
                    calls = true;
                    if let Some(callee) = self.get(callee)
                        && seen.insert(&callee.name)
                    {
                        open.push(callee);
                    }
                };
                if self.get(&node.op).is_some() {
                    add(&node.op);
                }
                each_function(&node.attrs, &mut add);
                let is_excluded = calls || &*node.op == "Assert" || node.op.contains("Dataset");
                if !is_excluded && ops::lookup(&node.op).is_some_and(|op| op.is_stateful()) {
                    return Some(node.op.clone());
                }
            }
        }
        None
    }

    /// Returns the functions and gradients that the graph's nodes can call, directly or through other functions.
    pub fn reachable_from(self: &Arc<FunctionLibrary>, graph: &Graph) -> Arc<FunctionLibrary> {
        if self.is_empty() {
            return self.clone();
        }
        Arc::new(self.reachable(graph.nodes().map(|(_, node)| (node.op.name(), &node.attrs))))
    }

    /// Returns the functions that nodes with these ops and attributes can call, in the library's order. The gradient of
    /// each included function is included.
    fn reachable<'a>(&self, roots: impl Iterator<Item = (&'a str, &'a Attrs)>) -> FunctionLibrary {
        let mut wanted: FxHashSet<usize> = FxHashSet::default();
        let mut open: Vec<usize> = Vec::new();
        let mut reach = |open: &mut Vec<usize>, name: &str| {
            if let Some(&index) = self.by_name.get(name)
                && wanted.insert(index)
            {
                open.push(index);
            }
        };
        for (op, attrs) in roots {
            reach(&mut open, op);
            each_function(attrs, &mut |name| reach(&mut open, name));
        }
        let gradients: FxHashMap<&str, &str> = self.gradients.iter().map(|(f, g)| (&**f, &**g)).collect();
        while let Some(index) = open.pop() {
            let function = &self.functions[index];
            if let Some(gradient) = gradients.get(&*function.name) {
                reach(&mut open, gradient);
            }
            for node in &function.nodes {
                reach(&mut open, &node.op);
                each_function(&node.attrs, &mut |name| reach(&mut open, name));
            }
        }
        let mut kept = FunctionLibrary::default();
        for (index, function) in self.functions.iter().enumerate() {
            if wanted.contains(&index) {
                kept.by_name.insert(function.name.clone(), kept.functions.len());
                kept.functions.push(function.clone());
            }
        }
        let has = |name: &Arc<str>| kept.by_name.contains_key(name);
        kept.gradients = self.gradients.iter().filter(|(f, _)| has(f)).cloned().collect();
        kept.registered_gradients =
            self.registered_gradients.iter().filter(|(g, _)| has(g)).cloned().collect();
        kept
    }
}

/// Calls `found` with the name of each function that `attrs` hold, including functions nested in attributes of
/// functions.
pub(crate) fn each_function(attrs: &Attrs, found: &mut impl FnMut(&str)) {
    let mut open: Vec<&Attrs> = vec![attrs];
    while let Some(attrs) = open.pop() {
        for (_, value) in attrs.iter() {
            let functions = match value {
                AttrValue::Func(f) => std::slice::from_ref(f),
                AttrValue::List(crate::AttrList::Func(all)) => all,
                _ => continue,
            };
            for function in functions {
                found(&function.name);
                open.push(&function.attrs);
            }
        }
    }
}

impl PartialEq for FunctionLibrary {
    fn eq(&self, other: &FunctionLibrary) -> bool {
        self.functions == other.functions
            && self.gradients == other.gradients
            && self.registered_gradients == other.registered_gradients
    }
}
