//! Builders of variables by reference.

use super::Scope;
use crate::dtype::DType;
use crate::graph::Output;
use crate::shape::PartialShape;

impl Scope {
    /// A variable; the output is a reference to it. It has no value until one is assigned, and keeps its value
    /// between steps, for all who use its name on its device.
    pub fn variable(&self, name: &str, dtype: DType, shape: impl Into<PartialShape>) -> Output {
        self.op("VariableV2").name(name).attr("dtype", dtype).attr("shape", shape.into()).output()
    }

    /// Assigns a value; gives the reference, as it is after that.
    pub fn assign(&self, variable: Output, value: Output) -> Output {
        self.op("Assign").input(variable).input(value).output()
    }

    /// As [`Scope::assign`], of a value whose shape may be another than the variable's.
    pub fn assign_any_shape(&self, variable: Output, value: Output) -> Output {
        self.op("Assign").input(variable).input(value).attr("validate_shape", false).output()
    }

    pub fn assign_add(&self, variable: Output, value: Output) -> Output {
        self.op("AssignAdd").input(variable).input(value).output()
    }

    pub fn assign_sub(&self, variable: Output, value: Output) -> Output {
        self.op("AssignSub").input(variable).input(value).output()
    }

    /// A boolean scalar.
    pub fn is_variable_initialized(&self, variable: Output) -> Output {
        self.op("IsVariableInitialized").input(variable).output()
    }

    /// The integer scalar's value before one is added to it; `OutOfRange` once it is `limit`.
    pub fn count_up_to(&self, variable: Output, limit: i64) -> Output {
        self.op("CountUpTo").input(variable).attr("limit", limit).output()
    }
}
