//! The variables of a model, by name: asked for twice, a variable is the same one, so that towers and
//! evaluation share what training changes.

use crate::initializer::{Initializer, Part};
use graph::{DType, Error, NodeId, Output, PartialShape, Scope, Shape};
use placer::{Partitioner, shards};
use std::cell::RefCell;
use std::rc::Rc;

/// One variable.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
    /// Its resource handle.
    pub handle: Output,
    /// Its value, as it is when the step reads it.
    pub value: Output,
    /// Assigns the first value.
    pub initializer: NodeId,
    /// Whether optimizers change it.
    pub trainable: bool,
    /// Which part of a whole it is, if it is one.
    pub part_of: Option<PartOf>,
}

/// What a part of a variable is a part of.
#[derive(Clone, Debug, PartialEq)]
pub struct PartOf {
    /// The name of the whole.
    pub name: String,
    /// The shape of the whole.
    pub shape: Shape,
    /// Where the part starts in the whole.
    pub offset: Vec<usize>,
}

/// Rows of a variable that a model has picked.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    pub(crate) variable: String,
    /// The rows of the variable, in any shape.
    pub(crate) indices: Output,
    /// What was picked.
    pub(crate) rows: Output,
}

/// One variable cut along one axis into parts, each a variable of its own and placed by itself.
#[derive(Clone, Debug)]
pub struct PartitionedVariable {
    pub name: String,
    pub dtype: DType,
    /// The shape of the whole.
    pub shape: Shape,
    /// `name/part_0`, `name/part_1`, …
    pub parts: Vec<Variable>,
    /// The parts' values joined.
    pub value: Output,
}

/// A collection of variables. Clones share it.
#[derive(Clone, Debug)]
pub struct Variables {
    scope: Scope,
    made: Rc<RefCell<Made>>,
}

/// What a variable is to be.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    dtype: DType,
    dims: &'a [usize],
    first: &'a Initializer,
    trainable: bool,
}

#[derive(Debug, Default)]
struct Made {
    variables: Vec<Variable>,
    partitioned: Vec<PartitionedVariable>,
    lookups: Vec<Lookup>,
}

impl Variables {
    /// Variables made in this scope: its devices and device functions place them, its names do not prefix
    /// theirs.
    pub fn new(scope: &Scope) -> Variables {
        Variables { scope: scope.clone(), made: Rc::default() }
    }

    /// The variable of this name; made if it is not there. One that is there with another type or shape is the
    /// graph's error.
    pub fn get(&self, name: &str, dtype: DType, shape: &[usize], initializer: &Initializer) -> Variable {
        self.find_or_make(name, dtype, shape, initializer, true)
    }

    /// As [`Variables::get`], for what optimizers leave alone: counters, slots.
    pub fn get_untrained(
        &self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        initializer: &Initializer,
    ) -> Variable {
        self.find_or_make(name, dtype, shape, initializer, false)
    }

    /// As [`Variables::get`], cut into parts as the partitioner says. A strategy that spreads variables over
    /// parameter servers spreads the parts.
    pub fn get_partitioned(
        &self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        initializer: &Initializer,
        partitioner: Partitioner,
    ) -> PartitionedVariable {
        let found = self.made.borrow().partitioned.iter().find(|v| v.name == name).cloned();
        if let Some(found) = found {
            self.expect(name, (found.dtype, &found.shape), (dtype, shape));
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
                let part = Part { whole: &whole, offset: &shard.offset, index };
                let of = PartOf { name: name.to_owned(), shape: whole.clone(), offset: shard.offset.clone() };
                let wanted = Wanted { dtype, dims: &shard.shape, first: initializer, trainable: true };
                self.make(&format!("{name}/part_{index}"), &wanted, part, Some(of))
            })
            .collect();
        let values: Vec<Output> = parts.iter().map(|part| part.value).collect();
        let value = self.scope.name_scope(name).concat(&values, axis.unwrap_or(0) as i32);
        let variable = PartitionedVariable { name: name.to_owned(), dtype, shape: whole, parts, value };
        self.made.borrow_mut().partitioned.push(variable.clone());
        variable
    }

    /// A slot of another variable, on its device: same type and shape.
    pub(crate) fn slot(&self, of: &Variable, slot: &str, initializer: &Initializer) -> Variable {
        let name = format!("{}/{slot}", of.name);
        self.beside(of).find_or_make(&name, of.dtype, of.shape.dims(), initializer, false)
    }

    /// Where variables are made.
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The same collection; what is made here is on the device of `variable`.
    pub(crate) fn beside(&self, variable: &Variable) -> Variables {
        Variables { scope: self.scope.colocate_with(variable.handle.node), made: self.made.clone() }
    }

    /// How many steps all replicas together have done, an `int64` scalar named `global_step`.
    pub fn global_step(&self) -> Variable {
        self.get_untrained("global_step", DType::Int64, &[], &Initializer::Value(0i64.into()))
    }

    pub(crate) fn remember(&self, lookup: Lookup) {
        self.made.borrow_mut().lookups.push(lookup);
    }

    pub(crate) fn lookups(&self) -> Vec<Lookup> {
        self.made.borrow().lookups.clone()
    }

    pub fn find(&self, name: &str) -> Option<Variable> {
        self.made.borrow().variables.iter().find(|v| v.name == name).cloned()
    }

    /// Every variable, parts one by one, in the order in which they were made.
    pub fn all(&self) -> Vec<Variable> {
        self.made.borrow().variables.clone()
    }

    pub fn trainable(&self) -> Vec<Variable> {
        self.made.borrow().variables.iter().filter(|v| v.trainable).cloned().collect()
    }

    /// A node that gives every variable its first value.
    pub fn initializer(&self) -> NodeId {
        let all: Vec<NodeId> = self.made.borrow().variables.iter().map(|v| v.initializer).collect();
        self.scope.group(&all)
    }

    /// A boolean scalar a variable: whether it has a value.
    pub fn are_initialized(&self) -> Vec<(String, Output)> {
        let probe = |v: &Variable| {
            let probe = self.scope.op("VarIsInitializedOp").input(v.handle).output();
            (v.name.clone(), probe)
        };
        self.made.borrow().variables.iter().map(probe).collect()
    }

    fn find_or_make(
        &self,
        name: &str,
        dtype: DType,
        dims: &[usize],
        first: &Initializer,
        trainable: bool,
    ) -> Variable {
        if let Some(found) = self.find(name) {
            self.expect(name, (found.dtype, &found.shape), (dtype, dims));
            return found;
        }
        let whole = self.shape(dims);
        self.make(name, &Wanted { dtype, dims, first, trainable }, Part::all(&whole), None)
    }

    fn expect(&self, name: &str, found: (DType, &Shape), asked: (DType, &[usize])) {
        if (found.0, found.1.dims()) != asked {
            self.scope.fail(Error::invalid(format!(
                "variable '{name}' is {} of shape {}, and asked for as {} of shape {:?}",
                found.0, found.1, asked.0, asked.1
            )));
        }
    }

    fn shape(&self, dims: &[usize]) -> Shape {
        Shape::new(dims).unwrap_or_else(|error| {
            self.scope.fail(error);
            Shape::scalar()
        })
    }

    fn make(&self, name: &str, wanted: &Wanted<'_>, part: Part<'_>, part_of: Option<PartOf>) -> Variable {
        let Wanted { dtype, dims, first, trainable } = *wanted;
        let shape = self.shape(dims);
        let handle = self
            .scope
            .op("VarHandleOp")
            .name(name)
            .attr("dtype", dtype)
            .attr("shape", PartialShape::from(&shape))
            .attr("shared_name", name)
            .output();
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
            Variable { name: name.to_owned(), dtype, shape, handle, value, initializer, trainable, part_of };
        self.made.borrow_mut().variables.push(variable.clone());
        variable
    }
}
