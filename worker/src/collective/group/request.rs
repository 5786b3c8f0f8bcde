//! A member's request to take part in a collective of a group.

use device::collective::{Merge, Operation, Reduction};
use device::{Error, Result};
use graph::{DType, Shape, Tensor};

/// One member's part in a collective.
#[derive(Clone, Debug)]
pub struct GroupCall {
    /// The name of the call in messages, such as `all_reduce`.
    pub name: &'static str,
    pub operation: Operation,
    pub dtype: DType,
    pub input: Option<Tensor>,
    /// The shape of the member's output.
    pub output: Shape,
    /// The shape that must be equal on all members; `None` for a call that only synchronizes.
    pub agreed: Option<Shape>,
    /// The rank of the member that all others send to or receive from.
    pub root: Option<usize>,
}

impl GroupCall {
    /// Returns the description that must be equal on all members, such as `reduce(sum) with root 0 of float [2,3]`.
    pub(super) fn description(&self) -> String {
        let Some(agreed) = &self.agreed else { return self.name.to_owned() };
        let functions = self.reduction().map_or(String::new(), |r| format!("({})", function(r)));
        let root = self.root.map_or(String::new(), |root| format!(" with root {root}"));
        format!("{}{functions}{root} of {} {agreed}", self.name, self.dtype)
    }

    /// Checks the call against the number of members.
    ///
    /// # Errors
    /// `InvalidArgument` for a root that is no member, or an input whose first dimension must be the number of members
    /// and is not; `Unimplemented` for a type that is not reduced.
    pub(super) fn check(&self, size: usize) -> Result<()> {
        if let Some(root) = self.root.filter(|root| *root >= size) {
            device::invalid!("{}: the root {root} is no rank of a group of {size} members", self.name);
        }
        if self.reduction().is_some() && !kernels::collective::is_reduced(self.dtype) {
            return Err(Error::unimplemented(format!("{}: {} is not reduced", self.name, self.dtype)));
        }
        let has_rows = matches!(
            self.operation,
            Operation::AllToAll | Operation::ReduceScatter(_) | Operation::Scatter { is_root: true }
        );
        let input = self.input.as_ref().filter(|_| has_rows);
        if let Some(shape) = input.map(Tensor::shape)
            && shape.dims().first() != Some(&size)
        {
            device::invalid!(
                "{}: the first dimension of a tensor of shape {shape} is not the number of members, {size}",
                self.name
            );
        }
        if self.operation == (Operation::Scatter { is_root: true }) && self.input.is_none() {
            device::invalid!("{}: the root has passed no tensor", self.name);
        }
        if let (Operation::Scatter { is_root: true }, Some(input)) = (self.operation, &self.input)
            && (input.dtype() != self.dtype || input.shape().dims()[1..] != *self.output.dims())
        {
            device::invalid!(
                "{}: a tensor of {} {} has no rows of {} {}",
                self.name,
                input.dtype(),
                input.shape(),
                self.dtype,
                self.output
            );
        }
        Ok(())
    }

    /// Returns the number of bytes of an element.
    ///
    /// # Errors
    /// `Unimplemented` for a type whose elements have no fixed size.
    pub(super) fn width(&self) -> Result<usize> {
        let width = self.dtype.size();
        width.ok_or_else(|| Error::unimplemented(format!("{} of {}", self.name, self.dtype)))
    }

    /// Returns whether the schedule counts the elements of the output instead of the input.
    pub(super) fn counts_output(&self) -> bool {
        matches!(self.operation, Operation::Broadcast { .. } | Operation::Scatter { .. })
    }

    fn reduction(&self) -> Option<Reduction> {
        match self.operation {
            Operation::Reduce(reduction)
            | Operation::ReduceScatter(reduction)
            | Operation::ReduceToRoot { reduction, .. } => Some(reduction),
            _ => None,
        }
    }
}

/// Returns the name of a reduction in messages.
fn function(reduction: Reduction) -> &'static str {
    match (reduction.merge, reduction.is_mean) {
        (Merge::Add, false) => "sum",
        (Merge::Add, true) => "mean",
        (Merge::Mul, false) => "product",
        (Merge::Mul, true) => "product, divided",
        (Merge::Min, false) => "min",
        (Merge::Min, true) => "min, divided",
        (Merge::Max, false) => "max",
        (Merge::Max, true) => "max, divided",
    }
}
