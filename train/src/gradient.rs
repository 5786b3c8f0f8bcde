//! Gradients of a loss with respect to variables: dense, or sparse with the rows that a lookup touched.

use crate::initializer::number;
use crate::strategy::Averaging;
use crate::variables::{Variable, Variables};
use graph::{DType, Error, NodeId, Output, Result, Scope};

/// The gradient of the loss with respect to one variable: dense, or sparse.
#[derive(Clone, Copy, Debug)]
pub enum Gradient {
    Dense(Output),
    /// The gradient of rows: `values[i]` is added to row `indices[i]`. `indices` is a vector of `int64` in
    /// which a row may occur more than once.
    Sparse {
        indices: Output,
        values: Output,
    },
}

impl Gradient {
    /// Returns the gradient as a tensor of the variable's shape.
    pub fn dense(self, scope: &Scope, variable: &Variable) -> Output {
        match self {
            Gradient::Dense(gradient) => gradient,
            Gradient::Sparse { indices, values } => {
                let rows = variable.shape.dims().first().copied().unwrap_or(1) as i64;
                scope.unsorted_segment_sum(values, indices, scope.constant(rows))
            }
        }
    }

    /// Returns the gradient with `change` applied to its values: the dense tensor, or the values of the rows.
    pub(crate) fn map(self, change: impl FnOnce(Output) -> Output) -> Gradient {
        match self {
            Gradient::Dense(gradient) => Gradient::Dense(change(gradient)),
            Gradient::Sparse { indices, values } => Gradient::Sparse { indices, values: change(values) },
        }
    }

    /// Returns the dense gradient's tensor, or the values of a sparse gradient's rows.
    pub(crate) fn values(self) -> Output {
        match self {
            Gradient::Dense(values) | Gradient::Sparse { values, .. } => values,
        }
    }
}

/// Returns the distinct row indices of a sparse gradient, and for each index the sum of its rows in `values`.
pub(crate) fn deduplicated(scope: &Scope, indices: Output, values: Output) -> (Output, Output) {
    let [unique, positions] = scope.unique(indices);
    (unique, scope.unsorted_segment_sum(values, positions, scope.size_of(unique)))
}

/// Returns the gradients of a loss with respect to every trainable variable.
///
/// # Errors
/// `InvalidArgument` with the name of a variable that the loss does not depend on, and the errors of
/// [`Scope::gradients`].
pub(crate) fn of_loss(
    scope: &Scope,
    variables: &Variables,
    loss: Output,
) -> Result<Vec<(Variable, Gradient)>> {
    let trained = variables.trainable();
    let lookups = variables.lookups();
    let values = trained.iter().map(|v| v.value).chain(lookups.iter().map(|l| l.rows));
    let gradients_or_none = scope.gradients(&[loss], &values.collect::<Vec<_>>(), &[])?;
    let (whole, of_rows) = gradients_or_none.split_at(trained.len().min(gradients_or_none.len()));
    let mut gradients = Vec::with_capacity(trained.len());
    for (variable, whole) in trained.into_iter().zip(whole) {
        let rows = lookups.iter().zip(of_rows).filter(|(lookup, _)| lookup.variable == variable.name);
        let row_gradients: Vec<Gradient> = rows
            .filter_map(|(lookup, values)| {
                let values = flat_rows(scope, &variable, (*values)?);
                let indices = scope.reshape(scope.cast(lookup.indices, DType::Int64), &[-1]);
                Some(Gradient::Sparse { indices, values })
            })
            .collect();
        let parts: Vec<Gradient> = whole.map(Gradient::Dense).into_iter().chain(row_gradients).collect();
        let Some(sum) = sum_of(scope, &variable, &parts) else {
            return Err(Error::invalid(format!("the loss does not depend on variable '{}'", variable.name)));
        };
        gradients.push((variable, sum));
    }
    Ok(gradients)
}

/// Reshapes the values of looked-up rows to `[rows, …]`: the axes of the lookup's indices become one axis.
fn flat_rows(scope: &Scope, variable: &Variable, values: Output) -> Output {
    let inner = variable.shape.dims().iter().skip(1).map(|&d| d as i64);
    scope.reshape(values, &std::iter::once(-1).chain(inner).collect::<Vec<_>>())
}

/// Returns the sum of one variable's gradients, added in the order of `parts`. The sum is sparse if all `parts` are
/// sparse.
fn sum_of(scope: &Scope, variable: &Variable, parts: &[Gradient]) -> Option<Gradient> {
    let rows = |part: &Gradient| match part {
        Gradient::Sparse { indices, values } => Some((*indices, *values)),
        Gradient::Dense(_) => None,
    };
    if let [only] = parts {
        return Some(*only);
    }
    if let Some(rows) = parts.iter().map(rows).collect::<Option<Vec<_>>>() {
        let (indices, values): (Vec<Output>, Vec<Output>) = rows.into_iter().unzip();
        let join = |parts: &[Output]| scope.concat(parts, 0);
        return (!indices.is_empty())
            .then(|| Gradient::Sparse { indices: join(&indices), values: join(&values) });
    }
    let all: Vec<Output> = parts.iter().map(|part| part.dense(scope, variable)).collect();
    Some(Gradient::Dense(scope.op("AddN").input(all).output()))
}

/// Returns the mean over towers of each variable's gradient, on the variable's device. The gradients are summed on that
/// device, in the order of the towers, or, with [`Averaging::Nccl`], between the towers' GPUs.
pub(crate) fn mean_over_towers(
    scope: &Scope,
    scopes: &[Scope],
    towers: &[Vec<(Variable, Gradient)>],
    averaging: Averaging,
) -> Vec<(Variable, Gradient)> {
    let Some(first) = towers.first() else { return Vec::new() };
    let mean = |(i, (variable, _)): (usize, &(Variable, Gradient))| {
        let beside = scope.colocate_with(variable.handle.node);
        let parts: Vec<Gradient> = towers.iter().filter_map(|t| t.get(i)).map(|(_, g)| *g).collect();
        let between = match averaging {
            Averaging::Nccl => sum_between(scopes, &beside, variable, &parts),
            Averaging::OnVariableDevice => None,
        };
        let sum = between.or_else(|| sum_of(&beside, variable, &parts))?;
        let mean = sum.map(|sum| if parts.len() > 1 { divide(&beside, sum, parts.len()) } else { sum });
        Some((variable.clone(), mean))
    };
    first.iter().enumerate().filter_map(mean).collect()
}

/// Returns the sum of one variable's gradients, which are on several GPUs of one task, one for each of `scopes`. Every
/// GPU takes part and receives the sum; the first GPU's copy is returned. Returns `None` if NCCL cannot sum them.
fn sum_between(
    scopes: &[Scope],
    beside: &Scope,
    variable: &Variable,
    parts: &[Gradient],
) -> Option<Gradient> {
    let whole = |part: &Gradient| match part {
        Gradient::Dense(gradient) => Some(*gradient),
        Gradient::Sparse { .. } => None,
    };
    let parts: Vec<Output> = parts.iter().map(whole).collect::<Option<_>>()?;
    let (&first, others) = parts.split_first()?;
    let is_supported = matches!(beside.dtype(first), DType::Half | DType::Float | DType::Double);
    if others.is_empty() || !is_supported {
        return None;
    }
    // The name identifies one NCCL sum. It contains the gradient's node, because one graph may train a variable twice.
    let name = format!("gradient of {} from {}:{}", variable.name, first.node.index(), first.index);
    let sums = scopes.iter().zip(&parts).map(|(tower, &part)| tower.nccl_all_sum(part, parts.len(), &name));
    let sums: Vec<Output> = sums.collect();
    let (&sum, others) = sums.split_first()?;
    // The other towers' nodes are control inputs, because they would be pruned without a reader and NCCL
    // needs all of them.
    let all: Vec<NodeId> = others.iter().map(|sum| sum.node).collect();
    Some(Gradient::Dense(beside.control(&all).op("Identity").input(sum).output()))
}

/// Adds the division of a sum of `count` terms by `count`, which gives the mean.
fn divide(scope: &Scope, sum: Output, count: usize) -> Output {
    scope.mul(sum, number(scope, scope.dtype(sum), 1.0 / count as f64))
}

/// Returns the mean of tensors of one shape, added in the order of `values`.
pub(crate) fn mean_of(scope: &Scope, values: &[Output]) -> Output {
    match values {
        [only] => *only,
        many => divide(scope, scope.op("AddN").input(many).output(), many.len()),
    }
}
