//! What a standby knows of a variable.

use super::Variable;
use crate::journal::{Extent, Record, Replicated, State, VariableState};
use graph::{Shape, Tensor};

impl Replicated for Variable {
    fn attach(&self, record: Record) {
        // A variable is in one store.
        let _is_first = self.record.set(record);
    }

    fn state(&self, extent: &Extent) -> State {
        let held = self.held.lock();
        if let (Extent::Slices { length, numbers }, Some(value)) = (extent, &held.value)
            && let Some(values) = slices(value, *length, numbers.iter().copied())
        {
            return State::Slices { numbers: numbers.iter().copied().collect(), values };
        }
        State::Variable(VariableState {
            name: self.name.clone(),
            dtype: self.dtype,
            shape: self.shape.clone(),
            value: held.value.clone(),
        })
    }
}

/// A copy of the slices, a row each; `None` if they are not all in the value.
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
