//! The states of variables that are sent to a standby's store.

use super::{RefVariable, Variable};
use crate::error::{Error, Result};
use crate::journal::{Extent, Record, ReplicaState, Replicated};
use crate::resource::{Resource, ResourceStore};
use graph::{DType, PartialShape, Shape, Tensor};
use std::sync::Arc;

/// The state of a whole variable, from which a replica can be created.
#[derive(Clone, Debug)]
pub struct VariableState {
    /// The name of the node that created the variable.
    pub name: Arc<str>,
    pub dtype: DType,
    pub shape: PartialShape,
    pub value: Option<Tensor>,
}

/// Some slices of a variable: their indices, and a matrix with a row for each slice.
#[derive(Clone, Debug)]
pub struct VariableSlices {
    pub numbers: Vec<usize>,
    pub values: Tensor,
}

impl Replicated for Variable {
    fn attach(&self, record: Record) {
        // A variable is in one store, so the record is set once.
        let _is_first = self.record.set(record);
    }

    fn state(&self, extent: &Extent) -> Box<dyn ReplicaState> {
        let host_value = self.host_value.lock();
        if let (Extent::Slices { length, numbers }, Some(value)) = (extent, &host_value.value)
            && let Some(values) = slices(value, *length, numbers.iter().copied())
        {
            return Box::new(VariableSlices { numbers: numbers.iter().copied().collect(), values });
        }
        Box::new(VariableState {
            name: self.name.clone(),
            dtype: self.dtype,
            shape: self.shape.clone(),
            value: host_value.value.clone(),
        })
    }
}

impl ReplicaState for VariableState {
    fn apply(self: Box<Self>, store: &ResourceStore, container: &str, kind: &str, name: &str) -> Result<()> {
        let make = || Variable::new(self.name.clone(), self.dtype, self.shape.clone());
        let variable = match kind {
            RefVariable::KIND => {
                store.lookup_or_create(container, name, || Ok(RefVariable(Arc::new(make()))))?.0.clone()
            }
            _ => store.lookup_or_create(container, name, || Ok(make()))?,
        };
        *variable.lock() = self.value;
        Ok(())
    }
}

impl ReplicaState for VariableSlices {
    fn apply(self: Box<Self>, store: &ResourceStore, container: &str, kind: &str, name: &str) -> Result<()> {
        let variable = match kind {
            RefVariable::KIND => store.lookup::<RefVariable>(container, name)?.0.clone(),
            _ => store.lookup::<Variable>(container, name)?,
        };
        variable.set_slices(&self.numbers, &self.values)
    }
}

impl Variable {
    fn set_slices(&self, numbers: &[usize], values: &Tensor) -> Result<()> {
        let length = values.num_elements().checked_div(numbers.len()).unwrap_or(0);
        let mut locked = self.lock();
        let slices = locked.slices_mut(numbers.iter().copied(), length)?;
        let value = slices.as_mut().ok_or_else(|| self.uninitialized())?;
        let size = length * value.dtype().size().unwrap_or(0);
        let from = values.bytes()?;
        let to = value.bytes_mut()?;
        for (row, number) in numbers.iter().enumerate() {
            let from = from.get(row * size..(row + 1) * size);
            let start = number.checked_mul(size);
            let to = start.and_then(|start| to.get_mut(start..)?.get_mut(..size));
            match (from, to) {
                (Some(from), Some(to)) => to.copy_from_slice(from),
                _ => return Err(Error::internal(format!("{} has no slice {number}", self.name()))),
            }
        }
        Ok(())
    }
}

/// Returns a copy of the slices, one per row; `None` if a slice is outside the value.
fn slices(value: &Tensor, length: usize, numbers: impl ExactSizeIterator<Item = usize>) -> Option<Tensor> {
    let size = length * value.dtype().size()?;
    let (count, from) = (numbers.len(), value.bytes().ok()?);
    let mut copied = Tensor::zeros(value.dtype(), Shape::new(&[count, length]).ok()?).ok()?;
    let to = copied.bytes_mut().ok()?;
    for (to, number) in to.chunks_exact_mut(size.max(1)).zip(numbers) {
        to.copy_from_slice(from.get(number * size..(number + 1) * size)?);
    }
    Some(copied)
}
