//! Gradients that wait in a place a worker and variable, and are summed in the order of the workers.

use crate::gradient::Gradient;
use crate::initializer::Initializer;
use crate::variables::{Variable, Variables};
use graph::{DType, NodeId, Output, PartialShape, Scope, Shape, Tensor};

/// A place a worker and variable, beside the variable.
#[derive(Clone, Debug)]
pub(crate) struct InOrder {
    /// By variable, then by worker.
    places: Vec<Vec<Place>>,
    /// Whose gradients an update takes, a vector of `bool` to be fed.
    pub(super) contributors: Output,
}

#[derive(Clone, Debug)]
enum Place {
    Dense(Variable),
    /// Their numbers of rows differ from step to step.
    Sparse {
        indices: Rows,
        values: Rows,
    },
}

/// A variable of rows, as many as there are.
#[derive(Clone, Debug)]
struct Rows {
    handle: Output,
    dtype: DType,
    initializer: NodeId,
}

impl Rows {
    fn new(scope: &Scope, name: &str, dtype: DType, row: &[usize]) -> Rows {
        let shape = PartialShape::of_dims(std::iter::once(None).chain(row.iter().map(|&d| Some(d))));
        let handle = scope
            .op("VarHandleOp")
            .name(name)
            .attr("dtype", dtype)
            .attr("shape", shape)
            .attr("shared_name", name)
            .output();
        let none: Vec<usize> = std::iter::once(0).chain(row.iter().copied()).collect();
        let initializer = scope.assign_variable(handle, scope.zeros(dtype, &none));
        Rows { handle, dtype, initializer }
    }

    fn read(&self, scope: &Scope) -> Output {
        scope.read_variable(self.handle, self.dtype)
    }
}

/// The first `count` rows of all.
fn first(scope: &Scope, all: Output, rank: usize, count: Output) -> Output {
    let begin = scope.constant_vector(&vec![0i32; rank]);
    let count = scope.expand_dims(count, 0);
    let size = match rank {
        0 | 1 => count,
        _ => scope.concat(&[count, scope.constant_vector(&vec![-1i32; rank - 1])], 0),
    };
    scope.op("Slice").input(all).input(begin).input(size).output()
}

impl InOrder {
    /// `state` makes variables that are not saved.
    pub(super) fn new(state: &Variables, workers: usize, gradients: &[(Variable, Gradient)]) -> InOrder {
        let place = |variable: &Variable, gradient: &Gradient, worker: usize| {
            let name = format!("{}/grad_place/{worker}", variable.name);
            let dims = variable.shape.dims();
            match gradient {
                Gradient::Dense(_) => {
                    let beside = state.beside(variable);
                    Place::Dense(beside.get_untrained(&name, variable.dtype, dims, &Initializer::Zeros))
                }
                Gradient::Sparse { .. } => {
                    let beside = state.scope().colocate_with(variable.handle.node);
                    let row = dims.get(1..).unwrap_or_default();
                    Place::Sparse {
                        indices: Rows::new(&beside, &format!("{name}/indices"), DType::Int64, &[]),
                        values: Rows::new(&beside, &format!("{name}/values"), variable.dtype, row),
                    }
                }
            }
        };
        let of_variable = |(variable, gradient): &(Variable, Gradient)| {
            (0..workers).map(|worker| place(variable, gradient, worker)).collect()
        };
        let contributors =
            state.scope().placeholder("sync_rep_contributors", DType::Bool, PartialShape::from([workers]));
        InOrder { places: gradients.iter().map(of_variable).collect(), contributors }
    }

    /// First values of the places that `state` does not know.
    pub(super) fn initializers(&self) -> Vec<NodeId> {
        let of_place = |place: &Place| match place {
            Place::Dense(_) => Vec::new(),
            Place::Sparse { indices, values } => vec![indices.initializer, values.initializer],
        };
        self.places.iter().flatten().flat_map(of_place).collect()
    }

    /// A worker's gradients into its places.
    pub(super) fn push(
        &self,
        scope: &Scope,
        worker: usize,
        gradients: &[(Variable, Gradient)],
    ) -> Vec<NodeId> {
        let mut pushes = Vec::with_capacity(gradients.len());
        for ((variable, gradient), places) in gradients.iter().zip(&self.places) {
            let beside = scope.colocate_with(variable.handle.node);
            match (&places[worker], *gradient) {
                (Place::Sparse { indices: to, values: of }, Gradient::Sparse { indices, values }) => {
                    pushes.push(beside.assign_variable(to.handle, indices));
                    pushes.push(beside.assign_variable(of.handle, values));
                }
                (Place::Dense(place), gradient) => {
                    let gradient = gradient.dense(&beside, variable);
                    pushes.push(beside.assign_variable(place.handle, gradient));
                }
                (Place::Sparse { .. }, Gradient::Dense(_)) => {}
            }
        }
        pushes
    }

    /// The mean of the contributors' gradients of each variable, beside it, summed in the order of the workers.
    pub(super) fn means(
        &self,
        scope: &Scope,
        gradients: &[(Variable, Gradient)],
    ) -> Vec<(Variable, Gradient)> {
        let wanted = scope.unpack(self.contributors, self.places.first().map_or(0, Vec::len), 0);
        let count = scope.sum(scope.cast(self.contributors, DType::Double), &[0], false);
        let share = scope.reciprocal(count);
        let mean = |((variable, _), places): (&(Variable, Gradient), &Vec<Place>)| {
            let beside = scope.colocate_with(variable.handle.node);
            let share = beside.cast(share, variable.dtype);
            let mut dense = Vec::new();
            let (mut indices_of_all, mut values_of_all) = (Vec::new(), Vec::new());
            for (place, wanted) in places.iter().zip(&wanted) {
                match place {
                    Place::Dense(place) => {
                        let zero = zero(&beside, variable.dtype);
                        let value = beside.read_variable(place.handle, variable.dtype);
                        dense.push(beside.select(*wanted, value, zero));
                    }
                    Place::Sparse { indices, values } => {
                        let (indices, values) = (indices.read(&beside), values.read(&beside));
                        let count = beside.select(*wanted, beside.size_of(indices), beside.constant(0i32));
                        indices_of_all.push(first(&beside, indices, 1, count));
                        values_of_all.push(first(&beside, values, variable.shape.rank().max(1), count));
                    }
                }
            }
            let joined = |parts: &[Output]| match parts {
                [one] => *one,
                parts => beside.concat(parts, 0),
            };
            let sum = if values_of_all.is_empty() {
                Gradient::Dense(match dense.as_slice() {
                    [one] => *one,
                    parts => beside.op("AddN").input(parts).output(),
                })
            } else {
                Gradient::Sparse { indices: joined(&indices_of_all), values: joined(&values_of_all) }
            };
            (variable.clone(), sum.map(|sum| beside.mul(sum, share)))
        };
        gradients.iter().zip(&self.places).map(mean).collect()
    }
}

fn zero(scope: &Scope, dtype: DType) -> Output {
    match Tensor::zeros(dtype, Shape::scalar()) {
        Ok(zero) => scope.constant(zero),
        Err(error) => {
            scope.fail(error);
            scope.constant(0.0f32)
        }
    }
}
