//! Gradients in one buffer for each worker and variable, summed in the order of the workers.

use crate::gradient::Gradient;
use crate::initializer::Initializer;
use crate::variables::{Variable, Variables};
use graph::{DType, NodeId, Output, PartialShape, Scope, Shape, Tensor};

/// One gradient buffer for each worker and variable, on the variable's device.
#[derive(Clone, Debug)]
pub(crate) struct GradientBuffers {
    /// The buffers by variable, then by worker.
    buffers: Vec<Vec<GradientBuffer>>,
    /// True for each worker whose gradients the update takes, a vector of `bool` to be fed.
    pub(super) contributors: Output,
}

#[derive(Clone, Debug)]
/// The buffer of one worker's gradient for one variable.
enum GradientBuffer {
    Dense(Variable),
    /// The gradient's rows, whose number differs from step to step.
    Sparse {
        indices: RowBuffer,
        values: RowBuffer,
    },
}

/// A variable that holds a varying number of rows: each assignment sets the size of its first dimension.
#[derive(Clone, Debug)]
struct RowBuffer {
    handle: Output,
    dtype: DType,
    initializer: NodeId,
}

impl RowBuffer {
    /// Adds an empty buffer of rows of shape `row`.
    fn new(scope: &Scope, name: &str, dtype: DType, row: &[usize]) -> RowBuffer {
        let shape = PartialShape::of_dims(std::iter::once(None).chain(row.iter().map(|&d| Some(d))));
        let handle = scope
            .op("VarHandleOp")
            .name(name)
            .attr("dtype", dtype)
            .attr("shape", shape)
            .attr("shared_name", name)
            .output();
        let empty: Vec<usize> = std::iter::once(0).chain(row.iter().copied()).collect();
        let initializer = scope.assign_variable(handle, scope.zeros(dtype, &empty));
        RowBuffer { handle, dtype, initializer }
    }

    /// Adds a node that reads all rows of the buffer.
    fn read(&self, scope: &Scope) -> Output {
        scope.read_variable(self.handle, self.dtype)
    }
}

/// Returns the first `count` rows of `all`, a tensor of rank `rank`.
fn first_rows(scope: &Scope, all: Output, rank: usize, count: Output) -> Output {
    let begin = scope.constant_vector(&vec![0i32; rank]);
    let count = scope.expand_dims(count, 0);
    let size = match rank {
        0 | 1 => count,
        _ => scope.concat(&[count, scope.constant_vector(&vec![-1i32; rank - 1])], 0),
    };
    scope.op("Slice").input(all).input(begin).input(size).output()
}

impl GradientBuffers {
    /// Adds a buffer for each worker and variable. Buffers of dense gradients are variables of the collection `state`,
    /// which no checkpoint contains.
    pub(super) fn new(
        state: &Variables,
        workers: usize,
        gradients: &[(Variable, Gradient)],
    ) -> GradientBuffers {
        let buffer = |variable: &Variable, gradient: &Gradient, worker: usize| {
            let name = format!("{}/grad_place/{worker}", variable.name);
            let dims = variable.shape.dims();
            match gradient {
                Gradient::Dense(_) => {
                    let beside = state.beside(variable);
                    GradientBuffer::Dense(beside.get_untrained(
                        &name,
                        variable.dtype,
                        dims,
                        &Initializer::Zeros,
                    ))
                }
                Gradient::Sparse { .. } => {
                    let beside = state.scope().colocate_with(variable.handle.node);
                    let row = dims.get(1..).unwrap_or_default();
                    GradientBuffer::Sparse {
                        indices: RowBuffer::new(&beside, &format!("{name}/indices"), DType::Int64, &[]),
                        values: RowBuffer::new(&beside, &format!("{name}/values"), variable.dtype, row),
                    }
                }
            }
        };
        let buffers_of = |(variable, gradient): &(Variable, Gradient)| {
            (0..workers).map(|worker| buffer(variable, gradient, worker)).collect()
        };
        let contributors =
            state.scope().placeholder("sync_rep_contributors", DType::Bool, PartialShape::from([workers]));
        GradientBuffers { buffers: gradients.iter().map(buffers_of).collect(), contributors }
    }

    /// Returns the initializers of the buffers of sparse gradients, which are not variables of the collection `state`.
    pub(super) fn initializers(&self) -> Vec<NodeId> {
        let initializers_of = |buffer: &GradientBuffer| match buffer {
            GradientBuffer::Dense(_) => Vec::new(),
            GradientBuffer::Sparse { indices, values } => vec![indices.initializer, values.initializer],
        };
        self.buffers.iter().flatten().flat_map(initializers_of).collect()
    }

    /// Adds the nodes that write a worker's gradients to its buffers.
    pub(super) fn push(
        &self,
        scope: &Scope,
        worker: usize,
        gradients: &[(Variable, Gradient)],
    ) -> Vec<NodeId> {
        let mut pushes = Vec::with_capacity(gradients.len());
        for ((variable, gradient), buffers) in gradients.iter().zip(&self.buffers) {
            let beside = scope.colocate_with(variable.handle.node);
            match (&buffers[worker], *gradient) {
                (
                    GradientBuffer::Sparse { indices: to, values: of },
                    Gradient::Sparse { indices, values },
                ) => {
                    pushes.push(beside.assign_variable(to.handle, indices));
                    pushes.push(beside.assign_variable(of.handle, values));
                }
                (GradientBuffer::Dense(buffer), gradient) => {
                    let gradient = gradient.dense(&beside, variable);
                    pushes.push(beside.assign_variable(buffer.handle, gradient));
                }
                (GradientBuffer::Sparse { .. }, Gradient::Dense(_)) => {}
            }
        }
        pushes
    }

    /// Returns the mean of the contributors' gradients for each variable, computed on the variable's device and summed
    /// in the order of the workers.
    pub(super) fn means(
        &self,
        scope: &Scope,
        gradients: &[(Variable, Gradient)],
    ) -> Vec<(Variable, Gradient)> {
        let contributes = scope.unpack(self.contributors, self.buffers.first().map_or(0, Vec::len), 0);
        let count = scope.sum(scope.cast(self.contributors, DType::Double), &[0], false);
        let share = scope.reciprocal(count);
        let mean = |((variable, _), buffers): (&(Variable, Gradient), &Vec<GradientBuffer>)| {
            let beside = scope.colocate_with(variable.handle.node);
            let share = beside.cast(share, variable.dtype);
            let mut dense = Vec::new();
            let (mut indices_of_all, mut values_of_all) = (Vec::new(), Vec::new());
            for (buffer, contributes) in buffers.iter().zip(&contributes) {
                match buffer {
                    GradientBuffer::Dense(buffer) => {
                        let zero = zero(&beside, variable.dtype);
                        let value = beside.read_variable(buffer.handle, variable.dtype);
                        dense.push(beside.select(*contributes, value, zero));
                    }
                    GradientBuffer::Sparse { indices, values } => {
                        let (indices, values) = (indices.read(&beside), values.read(&beside));
                        let count =
                            beside.select(*contributes, beside.size_of(indices), beside.constant(0i32));
                        indices_of_all.push(first_rows(&beside, indices, 1, count));
                        values_of_all.push(first_rows(&beside, values, variable.shape.rank().max(1), count));
                    }
                }
            }
            let join = |parts: &[Output]| match parts {
                [only] => *only,
                parts => beside.concat(parts, 0),
            };
            let sum = if values_of_all.is_empty() {
                Gradient::Dense(match dense.as_slice() {
                    [only] => *only,
                    parts => beside.op("AddN").input(parts).output(),
                })
            } else {
                Gradient::Sparse { indices: join(&indices_of_all), values: join(&values_of_all) }
            };
            (variable.clone(), sum.map(|sum| beside.mul(sum, share)))
        };
        gradients.iter().zip(&self.buffers).map(mean).collect()
    }
}

/// Returns a scalar constant 0.
fn zero(scope: &Scope, dtype: DType) -> Output {
    match Tensor::zeros(dtype, Shape::scalar()) {
        Ok(zero) => scope.constant(zero),
        Err(error) => {
            scope.fail(error);
            scope.constant(0.0f32)
        }
    }
}
