//! The variables of a model by name. Two requests for one name return the same variable, so that towers and
//! evaluation share the trained variables.

use crate::initializer::{Initializer, VariablePart};
use graph::{DType, Error, Node, NodeId, Output, PartialShape, Scope, Shape};
use placer::{Partitioner, shards};
use std::cell::RefCell;
use std::rc::Rc;

/// A variable of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
    /// The output of the node that holds the variable's resource handle.
    pub handle: Output,
    /// The output of a node that reads the value in each step.
    pub value: Output,
    /// The node that assigns the first value.
    pub initializer: NodeId,
    /// True if optimizers update the variable.
    pub trainable: bool,
    /// The position in the partitioned variable, if the variable is a part of one.
    pub slice: Option<VariableSlice>,
}

/// The position of a part in a partitioned variable.
#[derive(Clone, Debug, PartialEq)]
pub struct VariableSlice {
    /// The name of the whole variable.
    pub name: String,
    /// The shape of the whole variable.
    pub shape: Shape,
    /// The index of the part's first element along each axis of the whole variable.
    pub offset: Vec<usize>,
}

/// The attribute of the handle of a part: the name of the partitioned variable. Device functions read it.
const PART_ATTR: &str = "_part_of";

/// Returns whether a node is the handle of a part of a partitioned variable.
pub(crate) fn is_part(node: &Node) -> bool {
    node.attrs.get(PART_ATTR).is_some()
}

/// A gather of rows of a variable, whose gradient is sparse.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    /// The name of the variable that is looked up.
    pub(crate) variable: String,
    /// The indices of the gathered rows, a tensor of any shape.
    pub(crate) indices: Output,
    /// The values of the gathered rows.
    pub(crate) rows: Output,
}

/// A variable partitioned along one axis; each part is a variable that is placed separately.
#[derive(Clone, Debug)]
pub struct PartitionedVariable {
    pub name: String,
    pub dtype: DType,
    /// The shape of the whole variable.
    pub shape: Shape,
    /// The parts, named `name/part_0`, `name/part_1`, …
    pub parts: Vec<Variable>,
    /// The concatenated values of the parts.
    pub value: Output,
}

/// A collection of a model's variables, found by name. Clones share one collection.
#[derive(Clone, Debug)]
pub struct Variables {
    scope: Scope,
    registry: Rc<RefCell<VariableRegistry>>,
}

/// The properties of a variable that is to be created.
#[derive(Clone, Copy)]
struct VariableSpec<'a> {
    dtype: DType,
    dims: &'a [usize],
    first: &'a Initializer,
    trainable: bool,
}

/// The content of a collection: variables, partitioned variables, and recorded embedding lookups.
#[derive(Debug, Default)]
struct VariableRegistry {
    variables: Vec<Variable>,
    partitioned: Vec<PartitionedVariable>,
    lookups: Vec<Lookup>,
    /// The number of instance keys of collectives that are in use.
    instances: i32,
}

impl Variables {
    /// Returns an empty collection. The scope's devices and device functions place the variables; its name
    /// scope does not prefix their names.
    pub fn new(scope: &Scope) -> Variables {
        Variables { scope: scope.clone(), registry: Rc::default() }
    }

    /// Returns the trainable variable `name`, which is created if it does not exist. Adds an error to the graph if the
    /// variable exists with another type or shape.
    pub fn get(&self, name: &str, dtype: DType, shape: &[usize], initializer: &Initializer) -> Variable {
        self.get_or_create(name, dtype, shape, initializer, true)
    }

    /// Returns a variable like [`Variables::get`], but one that optimizers do not update: a counter or a
    /// slot.
    pub fn get_untrained(
        &self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        initializer: &Initializer,
    ) -> Variable {
        self.get_or_create(name, dtype, shape, initializer, false)
    }

    /// Returns a variable like [`Variables::get`], partitioned by `partitioner`. Strategies place each part like a
    /// separate variable.
    pub fn get_partitioned(
        &self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        initializer: &Initializer,
        partitioner: Partitioner,
    ) -> PartitionedVariable {
        let found = self.registry.borrow().partitioned.iter().find(|v| v.name == name).cloned();
        if let Some(found) = found {
            self.check_matches(name, (found.dtype, &found.shape), (dtype, shape));
            return found;
        }
        let whole = self.shape(shape);
        let cut = partitioner.partitions(&whole, dtype).and_then(|count| shards(&whole, &count));
        let cut = cut.unwrap_or_else(|error| {
            self.scope.fail(Error::invalid(format!("variable '{name}': {error}")));
            Vec::new()
        });
        let axis = cut.get(1).and_then(|second| second.offset.iter().position(|&start| start > 0));
        let parts: Vec<Variable> = (0..)
            .zip(&cut)
            .map(|(index, shard)| {
                let part = VariablePart { whole: &whole, offset: &shard.offset, index };
                let of = VariableSlice {
                    name: name.to_owned(),
                    shape: whole.clone(),
                    offset: shard.offset.clone(),
                };
                let spec = VariableSpec { dtype, dims: &shard.shape, first: initializer, trainable: true };
                self.create(&format!("{name}/part_{index}"), &spec, part, Some(of))
            })
            .collect();
        let values: Vec<Output> = parts.iter().map(|part| part.value).collect();
        let value = self.scope.name_scope(name).concat(&values, axis.unwrap_or(0) as i32);
        let variable = PartitionedVariable { name: name.to_owned(), dtype, shape: whole, parts, value };
        self.registry.borrow_mut().partitioned.push(variable.clone());
        variable
    }

    /// Returns a slot of another variable: a variable of the same type and shape, on the same device.
    pub(crate) fn slot(&self, of: &Variable, slot: &str, initializer: &Initializer) -> Variable {
        let name = format!("{}/{slot}", of.name);
        self.beside(of).get_or_create(&name, of.dtype, of.shape.dims(), initializer, false)
    }

    /// Returns the scope in which variables are created.
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Returns this collection with a scope that places new variables on the device of `variable`.
    pub(crate) fn beside(&self, variable: &Variable) -> Variables {
        Variables { scope: self.scope.colocate_with(variable.handle.node), registry: self.registry.clone() }
    }

    /// Returns the global step: the number of steps done by all replicas together, an `int64` scalar named
    /// `global_step`.
    pub fn global_step(&self) -> Variable {
        self.get_untrained("global_step", DType::Int64, &[], &Initializer::Value(0i64.into()))
    }

    /// Records an embedding lookup, so that its gradient can be sparse.
    pub(crate) fn add_lookup(&self, lookup: Lookup) {
        self.registry.borrow_mut().lookups.push(lookup);
    }

    /// Returns all recorded embedding lookups.
    pub(crate) fn lookups(&self) -> Vec<Lookup> {
        self.registry.borrow().lookups.clone()
    }

    /// Reserves `count` instance keys of collectives, and returns the first. Keys count from 1; they are unique in this
    /// collection.
    pub(crate) fn take_instances(&self, count: i32) -> i32 {
        let mut registry = self.registry.borrow_mut();
        let first = registry.instances.saturating_add(1);
        registry.instances = registry.instances.saturating_add(count);
        first
    }

    /// Returns the variable `name`, if it exists.
    pub fn find(&self, name: &str) -> Option<Variable> {
        self.registry.borrow().variables.iter().find(|v| v.name == name).cloned()
    }

    /// Returns all variables in the order of creation; each part of a partitioned variable is a variable of its own.
    pub fn all(&self) -> Vec<Variable> {
        self.registry.borrow().variables.clone()
    }

    /// Returns the variables that optimizers update, in the order of creation.
    pub fn trainable(&self) -> Vec<Variable> {
        self.registry.borrow().variables.iter().filter(|v| v.trainable).cloned().collect()
    }

    /// Returns a node that assigns its first value to every variable.
    pub fn initializer(&self) -> NodeId {
        let all: Vec<NodeId> = self.registry.borrow().variables.iter().map(|v| v.initializer).collect();
        self.scope.group(&all)
    }

    /// Returns the name of each variable, with a scalar `bool` that is true if the variable has a value.
    pub fn are_initialized(&self) -> Vec<(String, Output)> {
        let probe = |v: &Variable| {
            let probe = self.scope.op("VarIsInitializedOp").input(v.handle).output();
            (v.name.clone(), probe)
        };
        self.registry.borrow().variables.iter().map(probe).collect()
    }

    /// Returns the variable `name`, which is created if it does not exist.
    fn get_or_create(
        &self,
        name: &str,
        dtype: DType,
        dims: &[usize],
        first: &Initializer,
        trainable: bool,
    ) -> Variable {
        if let Some(found) = self.find(name) {
            self.check_matches(name, (found.dtype, &found.shape), (dtype, dims));
            return found;
        }
        let whole = self.shape(dims);
        self.create(name, &VariableSpec { dtype, dims, first, trainable }, VariablePart::all(&whole), None)
    }

    /// Adds an error to the graph if an existing variable has another type or shape than `requested`.
    fn check_matches(&self, name: &str, found: (DType, &Shape), requested: (DType, &[usize])) {
        if (found.0, found.1.dims()) != requested {
            self.scope.fail(Error::invalid(format!(
                "variable '{name}' is {} of shape {}, and asked for as {} of shape {:?}",
                found.0, found.1, requested.0, requested.1
            )));
        }
    }

    /// Returns the shape with the dimensions `dims`; adds an error to the graph if it has too many elements.
    fn shape(&self, dims: &[usize]) -> Shape {
        Shape::new(dims).unwrap_or_else(|error| {
            self.scope.fail(error);
            Shape::scalar()
        })
    }

    /// Adds the nodes of a new variable, and returns the variable.
    fn create(
        &self,
        name: &str,
        spec: &VariableSpec<'_>,
        part: VariablePart<'_>,
        slice: Option<VariableSlice>,
    ) -> Variable {
        let VariableSpec { dtype, dims, first, trainable } = *spec;
        let shape = self.shape(dims);
        let handle = self
            .scope
            .op("VarHandleOp")
            .name(name)
            .attr("dtype", dtype)
            .attr("shape", PartialShape::from(&shape))
            .attr("shared_name", name);
        let handle = match &slice {
            Some(whole) => handle.attr(PART_ATTR, whole.name.as_str()),
            None => handle,
        };
        let handle = handle.output();
        let beside = self.scope.colocate_with(handle.node);
        let value = first.build(&beside.name_scope(&format!("{name}/Initializer")), dtype, &shape, part);
        let initializer = beside
            .op("AssignVariableOp")
            .name(&format!("{name}/Assign"))
            .input(handle)
            .input(value)
            .attr("dtype", dtype)
            .node();
        let value = beside
            .op("ReadVariableOp")
            .name(&format!("{name}/Read"))
            .input(handle)
            .attr("dtype", dtype)
            .output();
        let variable =
            Variable { name: name.to_owned(), dtype, shape, handle, value, initializer, trainable, slice };
        self.registry.borrow_mut().variables.push(variable.clone());
        variable
    }
}
