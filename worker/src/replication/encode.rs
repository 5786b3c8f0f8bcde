//! Conversion of journal changes to and from protobuf messages.

use executor::Placed;
use executor::accumulator::Reduction;
use executor::journal::{AccumulatorState, Change, State, Sum, VariableState, What};
use executor::queue::{Element, Kind, QueueSpec};
use graph::{DType, PartialShape, Tensor};
use proto::Status;
use proto::convert::{
    dtype_from_proto, partial_shape_from_proto, partial_shape_to_proto, shape_from_proto, tensor_from_proto,
    tensor_to_proto,
};
use proto::replication::queue_state::Order;
use proto::replication::{self as pb, change};

/// Encodes a change.
pub(super) fn to_proto(change: &Change) -> pb::Change {
    let (kind, name, what) = match &change.what {
        What::State { kind, name, state } => (&**kind, &**name, state_to_proto(state)),
        What::Removed { kind, name } => (&**kind, &**name, change::What::Removed(true)),
        What::Cleared => ("", "", change::What::Cleared(true)),
    };
    pb::Change {
        store: change.store,
        container: change.container.to_string(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        what: Some(what),
    }
}

fn state_to_proto(state: &State) -> change::What {
    match state {
        State::Variable(state) => change::What::Variable(pb::VariableState {
            name: state.name.to_string(),
            dtype: state.dtype.number(),
            shape: Some(partial_shape_to_proto(&state.shape)),
            value: state.value.as_ref().map(tensor_to_proto),
            zeros: None,
        }),
        State::Slices { numbers, values } => change::What::Slices(pb::Slices {
            numbers: numbers.iter().map(|&number| number as u64).collect(),
            values: Some(tensor_to_proto(values)),
        }),
        State::Queue { spec, elements, is_closed } => {
            let (order, min_after_dequeue, (seed, seed2)) = match spec.kind {
                Kind::Fifo => (Order::Fifo, 0, (0, 0)),
                Kind::Padding => (Order::Padding, 0, (0, 0)),
                Kind::Shuffle { min_after_dequeue, seeds } => (Order::Shuffle, min_after_dequeue, seeds),
                Kind::Priority => (Order::Priority, 0, (0, 0)),
            };
            change::What::Queue(pb::QueueState {
                order: order.into(),
                min_after_dequeue,
                seed,
                seed2,
                capacity: spec.capacity,
                types: spec.types.iter().map(|dtype| dtype.number()).collect(),
                shapes: spec.shapes.iter().map(partial_shape_to_proto).collect(),
                // A replicated task has only CPU devices, so all tensors are in host memory.
                components: elements.iter().flatten().flat_map(Placed::tensor).map(tensor_to_proto).collect(),
                is_closed: *is_closed,
            })
        }
        State::Accumulator(state) => {
            let (sum, indices, counts) = match &state.sum {
                None => (None, Vec::new(), Vec::new()),
                Some(Sum::Dense(sum)) => (Some(tensor_to_proto(sum)), Vec::new(), Vec::new()),
                Some(Sum::Sparse { indices, values, counts }) => {
                    let counts = counts.iter().map(|&count| count as u64).collect();
                    (Some(tensor_to_proto(values)), indices.clone(), counts)
                }
            };
            change::What::Accumulator(pb::AccumulatorState {
                dtype: state.dtype.number(),
                shape: Some(partial_shape_to_proto(&state.shape)),
                is_sum: state.reduction == Reduction::Sum,
                is_sparse: state.is_sparse,
                step: state.step,
                count: state.count as u64,
                dropped: state.dropped,
                sum,
                indices,
                counts,
            })
        }
    }
}

/// Decodes a change.
///
/// # Errors
/// `InvalidArgument` for a message that no primary sends.
pub(super) fn from_proto(change: pb::Change) -> Result<Change, Status> {
    let pb::Change { store, container, kind, name, what } = change;
    let (kind, name) = (kind.into(), name.into());
    let what = match what.ok_or_else(|| Status::invalid("a change of nothing"))? {
        change::What::Cleared(_) => What::Cleared,
        change::What::Removed(_) => What::Removed { kind, name },
        state => What::State { kind, name, state: Box::new(state_from_proto(state)?) },
    };
    Ok(Change { store, container: container.into(), what })
}

fn state_from_proto(state: change::What) -> Result<State, Status> {
    Ok(match state {
        change::What::Variable(state) => State::Variable(VariableState {
            name: state.name.into(),
            dtype: dtype_from_proto(state.dtype)?,
            shape: shape(state.shape)?,
            value: match (state.value, state.zeros) {
                (Some(value), _) => Some(tensor_from_proto(value)?),
                (None, Some(zeros)) => Some(zeros_of(state.dtype, zeros)?),
                (None, None) => None,
            },
        }),
        change::What::Slices(slices) => State::Slices {
            numbers: slices.numbers.into_iter().map(number).collect::<Result<_, _>>()?,
            values: tensor_from_proto(slices.values.unwrap_or_default())?,
        },
        change::What::Queue(queue) => queue_from_proto(queue)?,
        change::What::Accumulator(state) => State::Accumulator(accumulator_from_proto(state)?),
        change::What::Removed(_) | change::What::Cleared(_) => {
            return Err(Status::invalid("a state of nothing"));
        }
    })
}

fn queue_from_proto(queue: pb::QueueState) -> Result<State, Status> {
    let kind = match queue.order() {
        Order::Fifo => Kind::Fifo,
        Order::Padding => Kind::Padding,
        Order::Shuffle => {
            let (min_after_dequeue, seeds) = (queue.min_after_dequeue, (queue.seed, queue.seed2));
            Kind::Shuffle { min_after_dequeue, seeds }
        }
        Order::Priority => Kind::Priority,
    };
    let types: Vec<DType> = queue.types.into_iter().map(dtype_from_proto).collect::<Result<_, _>>()?;
    let shapes = queue.shapes.iter().map(partial_shape_from_proto).collect::<Result<_, _>>()?;
    let components: Vec<Tensor> =
        queue.components.into_iter().map(tensor_from_proto).collect::<Result<_, _>>()?;
    let element = |components: &[Tensor]| components.iter().cloned().map(Placed::from).collect::<Element>();
    let elements = components.chunks(types.len().max(1)).map(element).collect();
    let spec = QueueSpec { kind, capacity: queue.capacity, types, shapes };
    Ok(State::Queue { spec, elements, is_closed: queue.is_closed })
}

fn accumulator_from_proto(state: pb::AccumulatorState) -> Result<AccumulatorState, Status> {
    let sum = state.sum.map(tensor_from_proto).transpose()?;
    let counts = state.counts.into_iter().map(number).collect::<Result<Vec<_>, _>>()?;
    let sum = sum.map(|values| match state.is_sparse {
        true => Sum::Sparse { indices: state.indices, values, counts },
        false => Sum::Dense(values),
    });
    Ok(AccumulatorState {
        dtype: dtype_from_proto(state.dtype)?,
        shape: shape(state.shape)?,
        reduction: if state.is_sum { Reduction::Sum } else { Reduction::Mean },
        is_sparse: state.is_sparse,
        step: state.step,
        count: number(state.count)?,
        dropped: state.dropped,
        sum,
    })
}

fn shape(shape: Option<proto::pb::TensorShapeProto>) -> Result<PartialShape, Status> {
    Ok(partial_shape_from_proto(&shape.unwrap_or_default())?)
}

/// Returns the zeros into which the slices of a large variable are written.
fn zeros_of(dtype: i32, shape: proto::pb::TensorShapeProto) -> Result<Tensor, Status> {
    Ok(Tensor::zeros(dtype_from_proto(dtype)?, shape_from_proto(&shape)?)?)
}

fn number(number: u64) -> Result<usize, Status> {
    usize::try_from(number).map_err(|_| Status::invalid(format!("{number} is too large a number")))
}
