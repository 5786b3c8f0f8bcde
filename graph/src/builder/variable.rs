//! Builders of reference variables.

use super::Scope;
use crate::dtype::DType;
use crate::graph::Output;
use crate::shape::PartialShape;

impl Scope {
    /// Adds a variable and returns a reference to it. The variable has no value until one is assigned, and keeps its
    /// value between steps; all nodes with this name on the same device share it.
    pub fn variable(&self, name: &str, dtype: DType, shape: impl Into<PartialShape>) -> Output {
        self.op("VariableV2").name(name).attr("dtype", dtype).attr("shape", shape.into()).output()
    }

    /// Assigns a value and returns the reference.
    pub fn assign(&self, variable: Output, value: Output) -> Output {
        self.op("Assign").input(variable).input(value).output()
    }

    /// Like [`Scope::assign`], for a value whose shape may differ from the variable's.
    pub fn assign_any_shape(&self, variable: Output, value: Output) -> Output {
        self.op("Assign").input(variable).input(value).attr("validate_shape", false).output()
    }

    /// Adds a value to the variable and returns the reference.
    pub fn assign_add(&self, variable: Output, value: Output) -> Output {
        self.op("AssignAdd").input(variable).input(value).output()
    }

    /// Subtracts a value from the variable and returns the reference.
    pub fn assign_sub(&self, variable: Output, value: Output) -> Output {
        self.op("AssignSub").input(variable).input(value).output()
    }

    /// Returns whether the variable has a value, as a boolean scalar.
    pub fn is_variable_initialized(&self, variable: Output) -> Output {
        self.op("IsVariableInitialized").input(variable).output()
    }

    /// Increments the integer scalar and returns its value before; fails with `OutOfRange` at `limit`.
    pub fn count_up_to(&self, variable: Output, limit: i64) -> Output {
        self.op("CountUpTo").input(variable).attr("limit", limit).output()
    }
}
