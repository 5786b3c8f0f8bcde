//! Conversion of journal changes to and from protobuf messages.

use device::AnyTensor;
use device::journal::{Change, ChangeKind, ReplicaState};
use device::variable::{VariableSlices, VariableState};
use graph::{DType, PartialShape, Tensor};
use kernels::objects::accumulator::{AccumulatorState, GradientSum, Reduction};
use kernels::objects::queue::{Element, QueueKind, QueueSpec, QueueState};
use proto::Status;
use proto::convert::{
    dtype_from_proto, partial_shape_from_proto, partial_shape_to_proto, shape_from_proto, tensor_from_proto,
    tensor_to_proto,
};
use proto::replication::queue_state::Order;
use proto::replication::{self as pb, change};
use std::any::Any;

/// Encodes a change. If the resource's type has no protobuf message, the field `what` is empty; every standby refuses
/// such a message.
pub(super) fn to_proto(change: &Change) -> pb::Change {
    let (kind, name, what) = match &change.what {
        ChangeKind::State { kind, name, state } => (&**kind, &**name, state_to_proto(&**state)),
        ChangeKind::Removed { kind, name } => (&**kind, &**name, Some(change::What::Removed(true))),
        ChangeKind::Cleared => ("", "", Some(change::What::Cleared(true))),
    };
    pb::Change {
        store: change.store,
        container: change.container.to_string(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        what,
    }
}

fn state_to_proto(state: &dyn ReplicaState) -> Option<change::What> {
    let state: &dyn Any = state;
    if let Some(state) = state.downcast_ref() {
        Some(change::What::Variable(variable_to_proto(state)))
    } else if let Some(state) = state.downcast_ref() {
        Some(change::What::Slices(slices_to_proto(state)))
    } else if let Some(state) = state.downcast_ref() {
        Some(change::What::Queue(queue_to_proto(state)))
    } else {
        state.downcast_ref().map(|state| change::What::Accumulator(accumulator_to_proto(state)))
    }
}

fn variable_to_proto(state: &VariableState) -> pb::VariableState {
    pb::VariableState {
        name: state.name.to_string(),
        dtype: state.dtype.number(),
        shape: Some(partial_shape_to_proto(&state.shape)),
        value: state.value.as_ref().map(tensor_to_proto),
        zeros: None,
    }
}

fn slices_to_proto(slices: &VariableSlices) -> pb::Slices {
    pb::Slices {
        numbers: slices.numbers.iter().map(|&number| number as u64).collect(),
        values: Some(tensor_to_proto(&slices.values)),
    }
}

fn queue_to_proto(QueueState { spec, elements, is_closed }: &QueueState) -> pb::QueueState {
    let (order, min_after_dequeue, (seed, seed2)) = match spec.kind {
        QueueKind::Fifo => (Order::Fifo, 0, (0, 0)),
        QueueKind::Padding => (Order::Padding, 0, (0, 0)),
        QueueKind::Shuffle { min_after_dequeue, seeds } => (Order::Shuffle, min_after_dequeue, seeds),
        QueueKind::Priority => (Order::Priority, 0, (0, 0)),
    };
    pb::QueueState {
        order: order.into(),
        min_after_dequeue,
        seed,
        seed2,
        capacity: spec.capacity,
        types: spec.types.iter().map(|dtype| dtype.number()).collect(),
        shapes: spec.shapes.iter().map(partial_shape_to_proto).collect(),
        // A replicated task has only CPU devices, so all tensors are in host memory.
        components: elements.iter().flatten().flat_map(AnyTensor::tensor).map(tensor_to_proto).collect(),
        is_closed: *is_closed,
    }
}

fn accumulator_to_proto(state: &AccumulatorState) -> pb::AccumulatorState {
    let (sum, indices, counts) = match &state.sum {
        None => (None, Vec::new(), Vec::new()),
        Some(GradientSum::Dense(sum)) => (Some(tensor_to_proto(sum)), Vec::new(), Vec::new()),
        Some(GradientSum::Sparse { indices, values, counts }) => {
            let counts = counts.iter().map(|&count| count as u64).collect();
            (Some(tensor_to_proto(values)), indices.clone(), counts)
        }
    };
    pb::AccumulatorState {
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
        change::What::Cleared(_) => ChangeKind::Cleared,
        change::What::Removed(_) => ChangeKind::Removed { kind, name },
        state => ChangeKind::State { kind, name, state: state_from_proto(state)? },
    };
    Ok(Change { store, container: container.into(), what })
}

fn state_from_proto(state: change::What) -> Result<Box<dyn ReplicaState>, Status> {
    Ok(match state {
        change::What::Variable(state) => Box::new(VariableState {
            name: state.name.into(),
            dtype: dtype_from_proto(state.dtype)?,
            shape: shape(state.shape)?,
            value: match (state.value, state.zeros) {
                (Some(value), _) => Some(tensor_from_proto(value)?),
                (None, Some(zeros)) => Some(zeros_of(state.dtype, zeros)?),
                (None, None) => None,
            },
        }),
        change::What::Slices(slices) => Box::new(VariableSlices {
            numbers: slices.numbers.into_iter().map(number).collect::<Result<_, _>>()?,
            values: tensor_from_proto(slices.values.unwrap_or_default())?,
        }),
        change::What::Queue(queue) => Box::new(queue_from_proto(queue)?),
        change::What::Accumulator(state) => Box::new(accumulator_from_proto(state)?),
        change::What::Removed(_) | change::What::Cleared(_) => {
            return Err(Status::invalid("a state of nothing"));
        }
    })
}

fn queue_from_proto(queue: pb::QueueState) -> Result<QueueState, Status> {
    let kind = match queue.order() {
        Order::Fifo => QueueKind::Fifo,
        Order::Padding => QueueKind::Padding,
        Order::Shuffle => {
            let (min_after_dequeue, seeds) = (queue.min_after_dequeue, (queue.seed, queue.seed2));
            QueueKind::Shuffle { min_after_dequeue, seeds }
        }
        Order::Priority => QueueKind::Priority,
    };
    let types: Vec<DType> = queue.types.into_iter().map(dtype_from_proto).collect::<Result<_, _>>()?;
    let shapes = queue.shapes.iter().map(partial_shape_from_proto).collect::<Result<_, _>>()?;
    let components: Vec<Tensor> =
        queue.components.into_iter().map(tensor_from_proto).collect::<Result<_, _>>()?;
    let element =
        |components: &[Tensor]| components.iter().cloned().map(AnyTensor::from).collect::<Element>();
    let elements = components.chunks(types.len().max(1)).map(element).collect();
    let spec = QueueSpec { kind, capacity: queue.capacity, types, shapes };
    Ok(QueueState { spec, elements, is_closed: queue.is_closed })
}

fn accumulator_from_proto(state: pb::AccumulatorState) -> Result<AccumulatorState, Status> {
    let sum = state.sum.map(tensor_from_proto).transpose()?;
    let counts = state.counts.into_iter().map(number).collect::<Result<Vec<_>, _>>()?;
    let sum = sum.map(|values| match state.is_sparse {
        true => GradientSum::Sparse { indices: state.indices, values, counts },
        false => GradientSum::Dense(values),
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

/// Returns a tensor of zeros, the initial value of a large variable whose slices arrive in later messages.
fn zeros_of(dtype: i32, shape: proto::pb::TensorShapeProto) -> Result<Tensor, Status> {
    Ok(Tensor::zeros(dtype_from_proto(dtype)?, shape_from_proto(&shape)?)?)
}

fn number(number: u64) -> Result<usize, Status> {
    usize::try_from(number).map_err(|_| Status::invalid(format!("{number} is too large a number")))
}
