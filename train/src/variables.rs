//! The variables of a model, by name: asked for twice, a variable is the same one, so that towers and
//! evaluation share what training changes.

use crate::initializer::Initializer;
use graph::{DType, NodeId, Output, PartialShape, Scope, Shape};
use std::cell::RefCell;
use std::rc::Rc;

/// One variable.
#[derive(Clone, Debug)]
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
}

/// A collection of variables. Clones share it.
#[derive(Clone, Debug)]
pub struct Variables {
    scope: Scope,
    all: Rc<RefCell<Vec<Variable>>>,
}

impl Variables {
    /// Variables made in this scope: its devices and device functions place them, its names do not prefix
    /// theirs.
    pub fn new(scope: &Scope) -> Variables {
        Variables { scope: scope.clone(), all: Rc::default() }
    }

    /// The variable of this name; made if it is not there.
    pub fn get(&self, name: &str, dtype: DType, shape: &[usize], initializer: &Initializer) -> Variable {
        self.find(name).unwrap_or_else(|| self.make(name, dtype, shape, initializer, true))
    }

    /// As [`Variables::get`], for what optimizers leave alone: counters, slots.
    pub fn get_untrained(
        &self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        initializer: &Initializer,
    ) -> Variable {
        self.find(name).unwrap_or_else(|| self.make(name, dtype, shape, initializer, false))
    }

    /// A slot of another variable, on its device: same type and shape.
    pub(crate) fn slot(&self, of: &Variable, slot: &str, initializer: &Initializer) -> Variable {
        let name = format!("{}/{slot}", of.name);
        self.find(&name).unwrap_or_else(|| {
            let beside = Variables { scope: self.scope.colocate_with(of.handle.node), all: self.all.clone() };
            beside.make(&name, of.dtype, &of.shape, initializer, false)
        })
    }

    pub fn find(&self, name: &str) -> Option<Variable> {
        self.all.borrow().iter().find(|v| v.name == name).cloned()
    }

    pub fn all(&self) -> Vec<Variable> {
        self.all.borrow().clone()
    }

    pub fn trainable(&self) -> Vec<Variable> {
        self.all.borrow().iter().filter(|v| v.trainable).cloned().collect()
    }

    /// A node that gives every variable its first value.
    pub fn initializer(&self) -> NodeId {
        let all: Vec<NodeId> = self.all.borrow().iter().map(|v| v.initializer).collect();
        self.scope.group(&all)
    }

    /// A boolean scalar a variable: whether it has a value.
    pub fn are_initialized(&self) -> Vec<(String, Output)> {
        let probe = |v: &Variable| {
            let probe = self.scope.op("VarIsInitializedOp").input(v.handle).output();
            (v.name.clone(), probe)
        };
        self.all.borrow().iter().map(probe).collect()
    }

    fn make(
        &self,
        name: &str,
        dtype: DType,
        dims: &[usize],
        first: &Initializer,
        trainable: bool,
    ) -> Variable {
        let shape = Shape::new(dims).unwrap_or_else(|error| {
            self.scope.fail(error);
            Shape::scalar()
        });
        let handle = self
            .scope
            .op("VarHandleOp")
            .name(name)
            .attr("dtype", dtype)
            .attr("shape", PartialShape::from(&shape))
            .attr("shared_name", name)
            .output();
        let beside = self.scope.colocate_with(handle.node);
        let value = first.build(&beside.name_scope(&format!("{name}/Initializer")), dtype, &shape);
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
            Variable { name: name.to_owned(), dtype, shape, handle, value, initializer, trainable };
        self.all.borrow_mut().push(variable.clone());
        variable
    }
}
