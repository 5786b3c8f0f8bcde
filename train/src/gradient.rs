//! Gradients of a loss with regard to variables: whole, or of those rows only that a lookup touched.

use crate::initializer::number;
use crate::strategy::Averaging;
use crate::variables::{Variable, Variables};
use graph::{DType, Error, NodeId, Output, Result, Scope};

/// The gradient with regard to one variable.
#[derive(Clone, Copy, Debug)]
pub enum Gradient {
    Dense(Output),
    /// `values[i]` is added to row `indices[i]`; `indices` is a vector of `int64`, where a row may come twice.
    Sparse {
        indices: Output,
        values: Output,
    },
}

impl Gradient {
    /// As a tensor of the variable's shape.
    pub fn dense(self, scope: &Scope, variable: &Variable) -> Output {
        match self {
            Gradient::Dense(gradient) => gradient,
            Gradient::Sparse { indices, values } => {
                let rows = variable.shape.dims().first().copied().unwrap_or(1) as i64;
                scope.unsorted_segment_sum(values, indices, scope.constant(rows))
            }
        }
    }

    /// The same with other values: `change` gets the tensor that holds them.
    pub(crate) fn map(self, change: impl FnOnce(Output) -> Output) -> Gradient {
        match self {
            Gradient::Dense(gradient) => Gradient::Dense(change(gradient)),
            Gradient::Sparse { indices, values } => Gradient::Sparse { indices, values: change(values) },
        }
    }

    /// The tensor that holds the values.
    pub(crate) fn values(self) -> Output {
        match self {
            Gradient::Dense(values) | Gradient::Sparse { values, .. } => values,
        }
    }
}

/// Each row once: the rows touched and their sums.
pub(crate) fn deduplicated(scope: &Scope, indices: Output, values: Output) -> (Output, Output) {
    let [unique, places] = scope.unique(indices);
    (unique, scope.unsorted_segment_sum(values, places, scope.size_of(unique)))
}

/// The gradients of a loss with regard to every variable that is trained.
///
/// # Errors
/// A variable that the loss does not depend on, by name, and those of [`Scope::gradients`].
pub(crate) fn of_loss(
    scope: &Scope,
    variables: &Variables,
    loss: Output,
) -> Result<Vec<(Variable, Gradient)>> {
    let trained = variables.trainable();
    let lookups = variables.lookups();
    let values = trained.iter().map(|v| v.value).chain(lookups.iter().map(|l| l.rows));
    let flowing = scope.gradients(&[loss], &values.collect::<Vec<_>>(), &[])?;
    let (whole, of_rows) = flowing.split_at(trained.len().min(flowing.len()));
    let mut gradients = Vec::with_capacity(trained.len());
    for (variable, whole) in trained.into_iter().zip(whole) {
        let rows = lookups.iter().zip(of_rows).filter(|(lookup, _)| lookup.variable == variable.name);
        let touched: Vec<Gradient> = rows
            .filter_map(|(lookup, values)| {
                let values = flat_rows(scope, &variable, (*values)?);
                let indices = scope.reshape(scope.cast(lookup.indices, DType::Int64), &[-1]);
                Some(Gradient::Sparse { indices, values })
            })
            .collect();
        let parts: Vec<Gradient> = whole.map(Gradient::Dense).into_iter().chain(touched).collect();
        let Some(sum) = sum_of(scope, &variable, &parts) else {
            return Err(Error::invalid(format!("the loss does not depend on variable '{}'", variable.name)));
        };
        gradients.push((variable, sum));
    }
    Ok(gradients)
}

/// Rows in one axis, however many axes the indices had.
fn flat_rows(scope: &Scope, variable: &Variable, values: Output) -> Output {
    let inner = variable.shape.dims().iter().skip(1).map(|&d| d as i64);
    scope.reshape(values, &std::iter::once(-1).chain(inner).collect::<Vec<_>>())
}

/// The sum of gradients of one variable, in their order; rows stay rows where all are.
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
        let joined = |parts: &[Output]| scope.concat(parts, 0);
        return (!indices.is_empty())
            .then(|| Gradient::Sparse { indices: joined(&indices), values: joined(&values) });
    }
    let all: Vec<Output> = parts.iter().map(|part| part.dense(scope, variable)).collect();
    Some(Gradient::Dense(scope.op("AddN").input(all).output()))
}

/// The mean over towers of each variable's gradient, in the variable's place: summed there, in their order, or between
/// the towers before.
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
            Averaging::BesideVariables => None,
        };
        let sum = between.or_else(|| sum_of(&beside, variable, &parts))?;
        let mean = sum.map(|sum| if parts.len() > 1 { over(&beside, sum, parts.len()) } else { sum });
        Some((variable.clone(), mean))
    };
    first.iter().enumerate().filter_map(mean).collect()
}

/// The sum of gradients that are on GPUs of one task, one in each of the scopes: all take part, and have it; the first
/// gives it. `None` where they cannot meet.
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
    let is_taken = matches!(beside.dtype(first), DType::Half | DType::Float | DType::Double);
    if others.is_empty() || !is_taken {
        return None;
    }
    // A variable may be trained twice in one graph.
    let name = format!("gradient of {} from {}:{}", variable.name, first.node.index(), first.index);
    let sums = scopes.iter().zip(&parts).map(|(tower, &part)| tower.nccl_all_sum(part, parts.len(), &name));
    let sums: Vec<Output> = sums.collect();
    let (&sum, others) = sums.split_first()?;
    // What nobody reads would not run.
    let all: Vec<NodeId> = others.iter().map(|sum| sum.node).collect();
    Some(Gradient::Dense(beside.control(&all).op("Identity").input(sum).output()))
}

/// A sum over `count` parts as their mean.
fn over(scope: &Scope, sum: Output, count: usize) -> Output {
    scope.mul(sum, number(scope, scope.dtype(sum), 1.0 / count as f64))
}

/// The mean of tensors of one shape; the order of summation is theirs.
pub(crate) fn mean_of(scope: &Scope, values: &[Output]) -> Output {
    match values {
        [one] => *one,
        many => over(scope, scope.op("AddN").input(many).output(), many.len()),
    }
}
