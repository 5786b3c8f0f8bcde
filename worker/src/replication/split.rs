//! Splits a change into messages of limited size: a large variable becomes a variable of zeros, followed by
//! its slices.

use super::encode::to_proto;
use device::journal::{Change, ChangeKind};
use device::variable::{VariableSlices, VariableState};
use graph::{PartialShape, Result, Shape, Tensor};
use proto::convert::{shape_to_proto, tensor_to_proto};
use proto::pb::TensorProto;
use proto::replication::{self as pb, change};
use std::any::Any;
use std::iter;

/// Splits a large variable, or slices of one, into messages of about `limit` bytes; other changes become one
/// message.
pub(super) fn split(change: Change, limit: usize) -> Box<dyn Iterator<Item = pb::Change> + Send> {
    let Some(slices) = Slices::of(&change, limit) else { return Box::new(iter::once(to_proto(&change))) };
    let first = zeros(&change);
    let template = without_values(&change).map(|change| pb::Change { what: None, ..to_proto(&change) });
    let template = template.unwrap_or_default();
    let per_message = (limit / slices.size()).max(1);
    let starts = (0..slices.count).step_by(per_message);
    let messages = starts.map(move |start| {
        // If the slices cannot be encoded, the message has no content, and every standby refuses it.
        let what = slices.encode_range(start, per_message.min(slices.count - start)).ok();
        pb::Change { what: what.map(change::What::Slices), ..template.clone() }
    });
    Box::new(first.into_iter().chain(messages))
}

/// Returns the approximate size of a message, bytes: the size of its tensors' elements.
pub(super) fn size(change: &pb::Change) -> usize {
    let of = |tensor: &Option<TensorProto>| tensor.as_ref().map_or(0, |t| t.tensor_content.len());
    match &change.what {
        Some(change::What::Variable(state)) => of(&state.value),
        Some(change::What::Slices(slices)) => of(&slices.values),
        Some(change::What::Queue(queue)) => queue.components.iter().map(|t| t.tensor_content.len()).sum(),
        Some(change::What::Accumulator(state)) => of(&state.sum),
        Some(change::What::Removed(_) | change::What::Cleared(_)) | None => 0,
    }
}

/// Returns the resource state that a change sets, if the state's type is `T`.
fn state_of<T: Any>(change: &Change) -> Option<&T> {
    let ChangeKind::State { state, .. } = &change.what else { return None };
    let state: &dyn Any = &**state;
    state.downcast_ref()
}

/// Returns the message that sets the variable of `change` to zeros; the zeros have the shape of the value in `change`.
fn zeros(change: &Change) -> Option<pb::Change> {
    let value = state_of::<VariableState>(change)?.value.as_ref()?;
    let mut message = to_proto(&without_values(change)?);
    let Some(change::What::Variable(state)) = &mut message.what else { return None };
    state.zeros = Some(shape_to_proto(value.shape()));
    Some(message)
}

/// Returns a change that sets the variable of `change`, without its value; `None` if `change` sets no variable.
fn without_values(change: &Change) -> Option<Change> {
    let ChangeKind::State { kind, name, .. } = &change.what else { return None };
    let state = match state_of::<VariableState>(change) {
        Some(state) => VariableState { value: None, ..state.clone() },
        None => VariableState {
            name: name.clone(),
            dtype: state_of::<VariableSlices>(change)?.values.dtype(),
            shape: PartialShape::unknown(),
            value: None,
        },
    };
    let what = ChangeKind::State { kind: kind.clone(), name: name.clone(), state: Box::new(state) };
    Some(Change { store: change.store, container: change.container.clone(), what })
}

/// The value of a variable, or some slices of the value, as `count` slices of equal length.
struct Slices {
    values: Tensor,
    /// The indices of the slices in the variable; `None` if the slices make up the whole variable.
    numbers: Option<Vec<usize>>,
    count: usize,
    /// Number of elements of each slice.
    length: usize,
}

impl Slices {
    /// Returns the slices that a change to a variable sets; `None` for other changes, and if the slices have at most
    /// `limit` bytes in total.
    fn of(change: &Change, limit: usize) -> Option<Slices> {
        let (values, numbers) = match (state_of::<VariableState>(change), state_of::<VariableSlices>(change))
        {
            (Some(variable), _) => (variable.value.clone()?, None),
            (_, Some(slices)) => (slices.values.clone(), Some(slices.numbers.clone())),
            _ => return None,
        };
        let bytes = values.bytes().ok()?.len();
        if bytes <= limit {
            return None;
        }
        let count = match &numbers {
            Some(numbers) => numbers.len(),
            None => slice_count(values.num_elements(), bytes.div_ceil(limit)),
        };
        let length = values.num_elements().checked_div(count)?;
        Some(Slices { values, numbers, count, length })
    }

    /// Returns the size of a slice, bytes.
    fn size(&self) -> usize {
        self.length * self.values.dtype().size().unwrap_or(1).max(1)
    }

    /// Encodes `count` slices beginning with slice `start`.
    fn encode_range(&self, start: usize, count: usize) -> Result<pb::Slices> {
        let range = start * self.size()..(start + count) * self.size();
        let bytes = self.values.bytes()?.get(range).unwrap_or_default();
        let values = Tensor::from_bytes(self.values.dtype(), Shape::new(&[count, self.length])?, bytes)?;
        let number = |i: usize| self.numbers.as_ref().map_or(i, |numbers| numbers[i]) as u64;
        Ok(pb::Slices {
            numbers: (start..start + count).map(number).collect(),
            values: Some(tensor_to_proto(&values)),
        })
    }
}

/// Returns the number of equal slices into which a tensor is cut: the smallest divisor of `elements` that is at least
/// `least` and below 64 times `least`, or `elements` if there is none.
fn slice_count(elements: usize, least: usize) -> usize {
    (least..least.saturating_mul(64)).find(|parts| elements.is_multiple_of(*parts)).unwrap_or(elements)
}

#[cfg(test)]
mod tests {
    use super::super::encode::from_proto;
    use super::*;
    use device::journal::ReplicaState;
    use device::resource::ResourceStore;
    use device::variable::Variable;
    use graph::DType;
    use std::sync::Arc;

    fn apply(store: &ResourceStore, state: Box<dyn ReplicaState>, limit: usize) -> usize {
        let what = ChangeKind::State { kind: "Var".into(), name: "v".into(), state };
        let change = Change { store: 0, container: "".into(), what };
        let pieces: Vec<pb::Change> = split(change, limit).collect();
        assert!(pieces.iter().all(|piece| size(piece) <= limit.max(4)));
        for piece in pieces.iter().cloned() {
            let applied = from_proto(piece).map(|change| change.apply(store));
            assert!(matches!(applied, Ok(Ok(()))), "{applied:?}");
        }
        pieces.len()
    }

    fn variable(store: &ResourceStore) -> Result<Arc<Variable>> {
        store.lookup("", "v").map_err(|e| graph::Error::invalid(e.to_string()))
    }

    #[test]
    fn large_variables_are_split() -> Result<()> {
        for elements in [1usize, 12, 13, 1_000, 1_009] {
            let numbers: Vec<f32> = (0..elements).map(|i| i as f32).collect();
            let value = Tensor::vector(&numbers)?;
            let state = || {
                Box::new(VariableState {
                    name: "v".into(),
                    dtype: DType::Float,
                    shape: PartialShape::unknown(),
                    value: Some(value.clone()),
                })
            };
            for limit in [1, 48, 1_000, 10_000] {
                let store = ResourceStore::default();
                let pieces = apply(&store, state(), limit);
                assert_eq!(pieces > 1, elements * 4 > limit, "{elements} {limit} {pieces}");
                assert_eq!(variable(&store)?.read().as_ref(), Some(&value), "{elements} {limit}");
            }
        }
        Ok(())
    }

    #[test]
    fn slices_are_split() -> Result<()> {
        let store = ResourceStore::default();
        let whole = Tensor::zeros(DType::Int32, Shape::new(&[100, 2])?)?;
        let shape = PartialShape::unknown();
        let (name, dtype, value) = ("v".into(), DType::Int32, Some(whole));
        apply(&store, Box::new(VariableState { name, dtype, shape, value }), 1_000_000);
        let numbers: Vec<usize> = (0..50).map(|i| 2 * i + 1).collect();
        let rows: Vec<i32> = (0..100).collect();
        let values = Tensor::from_slice(&rows, Shape::new(&[50, 2])?)?;
        assert_eq!(apply(&store, Box::new(VariableSlices { numbers, values }), 64), 7);
        let value = variable(&store)?.read().ok_or_else(|| graph::Error::invalid("no value"))?;
        let odd = value.values::<i32>()?.chunks(2).enumerate().all(|(row, pair)| {
            let first = if row % 2 == 1 { row as i32 - 1 } else { 0 };
            pair == if row % 2 == 1 { [first, first + 1] } else { [0, 0] }
        });
        assert!(odd, "{value:?}");
        Ok(())
    }
}
