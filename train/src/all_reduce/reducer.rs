//! The combination of all workers' gradients.
//!
//! A dense gradient is summed by one all-reduce. A sparse gradient has another number of rows on each worker and in
//! each step: the workers first compute the greatest number of rows by an all-reduce, pad their rows up to the next
//! power of two with rows of index -1, gather the indices and values of all workers, and remove the padding. Each power
//! of two has an instance key of its own, because the members of an instance agree on its shape when they first use it.

use super::{AllReduceJob, Average, Uneven, Wire, carrier, with_type};
use crate::gradient::Gradient;
use crate::initializer::number;
use crate::variables::{Variable, Variables};
use graph::builder::{Collective, CollectiveGroup, CollectiveReduction};
use graph::{DType, Error, NodeId, Output, Result, Scope};

/// The number of powers of two in an `int32`.
const POWERS: i32 = 31;
/// The longest time in seconds that a step waits for the gradients of the other workers: the default of
/// [`MonitoredConfig::step_deadline`](crate::MonitoredConfig::step_deadline), which ends a step earlier if it is shorter.
const STEP_TIMEOUT: f32 = 600.0;
/// The index of a row of padding.
const PADDING: i64 = -1;

/// The nodes that combine gradients, on a worker's CPU.
pub(super) struct Reducer<'a> {
    job: AllReduceJob,
    scope: &'a Scope,
    variables: &'a Variables,
    group: CollectiveGroup,
    weight: Option<Weight>,
}

/// This worker's weight in a step of a job whose workers may lack a batch.
#[derive(Clone, Copy)]
struct Weight {
    has_batch: Output,
    /// The number of workers that have a batch, a scalar `float`.
    total: Output,
}

/// The rows of a sparse gradient.
#[derive(Clone, Copy)]
struct Rows<'a> {
    variable: &'a Variable,
    indices: Output,
    values: Output,
    /// The number of rows without the padding, a scalar `int32`.
    count: Output,
}

impl<'a> Reducer<'a> {
    /// Returns the reducer of a step. This worker has a batch in the step if `has_batch` is true or `None`.
    pub(super) fn new(
        job: AllReduceJob,
        scope: &'a Scope,
        variables: &'a Variables,
        group: CollectiveGroup,
        has_batch: Option<Output>,
    ) -> Reducer<'a> {
        let mut reducer = Reducer { job, scope, variables, group, weight: None };
        reducer.weight = has_batch.map(|has_batch| {
            let own = scope.cast(has_batch, DType::Float);
            let total = scope.all_reduce(own, reducer.next_instance(), CollectiveReduction::Sum);
            Weight { has_batch, total }
        });
        reducer
    }

    /// Returns the number of workers that have a batch, or `None` if all have one.
    pub(super) fn total_weight(&self) -> Option<Output> {
        self.weight.map(|weight| weight.total)
    }

    /// Combines each gradient with those of the other workers.
    pub(super) fn reduce(&self, gradients: &[(Variable, Gradient)]) -> Result<Vec<(Variable, Gradient)>> {
        for (variable, gradient) in gradients {
            self.check(variable, gradient.values())?;
        }
        let mut rows = self.all_rows(gradients).into_iter();
        let mut combined = Vec::with_capacity(gradients.len());
        for (variable, gradient) in gradients {
            let gradient = match *gradient {
                Gradient::Dense(gradient) => Gradient::Dense(self.dense(gradient)),
                Gradient::Sparse { .. } => {
                    let Some((rows, most)) = rows.next() else { continue };
                    self.sparse(&rows, most)
                }
            };
            combined.push((variable.clone(), gradient));
        }
        Ok(combined)
    }

    /// Returns a node that ends when the nodes `after` of all workers have ended.
    pub(super) fn wait_for_all(&self, after: &[NodeId]) -> NodeId {
        let one = self.scope.constant(1i32);
        let instance = self.next_instance();
        self.scope.control(after).all_reduce(one, instance, CollectiveReduction::Max).node
    }

    /// Checks that gradients of this type can be combined.
    fn check(&self, variable: &Variable, values: Output) -> Result<()> {
        let dtype = self.scope.dtype(values);
        if dtype.is_floating() && carrier(dtype).is_some() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the gradient of variable '{}' is of {dtype}, which Strategy::AllReduce does not reduce",
            variable.name
        )))
    }

    /// Returns the rows of each sparse gradient, with the greatest number of rows that this gradient has on any worker.
    fn all_rows<'g>(&self, gradients: &'g [(Variable, Gradient)]) -> Vec<(Rows<'g>, Output)> {
        let rows: Vec<Rows<'g>> = gradients
            .iter()
            .filter_map(|(variable, gradient)| match *gradient {
                Gradient::Sparse { indices, values } => Some(self.counted(variable, indices, values)),
                Gradient::Dense(_) => None,
            })
            .collect();
        if rows.is_empty() {
            return Vec::new();
        }
        let counts: Vec<Output> = rows.iter().map(|rows| rows.count).collect();
        let counts = self.scope.pack(&counts, 0);
        let most = self.scope.all_reduce(counts, self.next_instance(), CollectiveReduction::Max);
        let most = self.scope.unpack(most, rows.len(), 0);
        rows.into_iter().zip(most).collect()
    }

    /// Returns the rows of a sparse gradient: none if this worker has no batch.
    fn counted<'g>(&self, variable: &'g Variable, indices: Output, values: Output) -> Rows<'g> {
        let scope = self.scope;
        let all = scope.size_of(indices);
        let Some(weight) = self.weight else { return Rows { variable, indices, values, count: all } };
        let count = scope.select(weight.has_batch, all, scope.constant(0i32));
        let first_rows = |x: Output, axes: usize| {
            let begin = scope.constant_vector(&vec![0i32; axes]);
            let rest = scope.constant_vector(&vec![-1i32; axes - 1]);
            let size = scope.concat(&[scope.reshape(count, &[1]), rest], 0);
            scope.op("Slice").input(x).input(begin).input(size).output()
        };
        let (indices, values) =
            (first_rows(indices, 1), first_rows(values, variable.shape.dims().len().max(1)));
        Rows { variable, indices, values, count }
    }

    /// Combines a dense gradient.
    fn dense(&self, gradient: Output) -> Output {
        let scope = self.scope;
        let own = match self.weight {
            // Gradients of a padded batch may be NaN, so they are replaced by zeros instead of being multiplied by 0.
            Some(weight) => scope.select(weight.has_batch, gradient, scope.zeros_like(gradient)),
            None => gradient,
        };
        let reduction = match (self.job.average, self.weight) {
            (Average::Mean, None) => CollectiveReduction::Mean,
            _ => CollectiveReduction::Sum,
        };
        let dtype = scope.dtype(gradient);
        let reduced = scope.all_reduce(scope.cast(own, self.wire(dtype)), self.next_instance(), reduction);
        let reduced = scope.cast(reduced, dtype);
        if reduction == CollectiveReduction::Mean { reduced } else { self.averaged(reduced) }
    }

    /// Combines a sparse gradient, which has at most `most` rows on each worker.
    fn sparse(&self, rows: &Rows<'_>, most: Output) -> Gradient {
        let scope = self.scope;
        let (size, power) = padded_size(scope, most);
        let padding = scope.reshape(scope.sub(size, rows.count), &[1]);
        let inner: Vec<usize> = rows.variable.shape.dims().iter().skip(1).copied().collect();
        let dtype = scope.dtype(rows.values);
        let sent = self.wire(dtype);
        let carried = carrier(sent).unwrap_or(sent);

        let indices = scope.concat(&[rows.indices, scope.fill(padding, scope.constant(PADDING))], 0);
        let values = with_type(scope, scope.cast(rows.values, sent), carried);
        let inner_size: Vec<i32> = inner.iter().map(|&dim| i32::try_from(dim).unwrap_or(i32::MAX)).collect();
        let padding = scope.concat(&[padding, scope.constant_vector(&inner_size)], 0);
        let values = scope.concat(&[values, scope.fill(padding, number(scope, carried, 0.0))], 0);

        let indices = scope.all_gather(indices, self.next_of_powers(power));
        let values = scope.all_gather(values, self.next_of_powers(power));
        let is_row = scope.greater_equal(indices, scope.constant(0i64));
        let kept = scope.reshape(scope.where_true(is_row), &[-1]);
        let values = scope.gather(with_type(scope, values, sent), kept, 0);
        let shape: Vec<i64> = std::iter::once(-1).chain(inner.iter().map(|&dim| dim as i64)).collect();
        let values = scope.reshape(scope.cast(values, dtype), &shape);
        Gradient::Sparse { indices: scope.gather(indices, kept, 0), values: self.averaged(values) }
    }

    /// Returns the combination of gradients from their sum.
    fn averaged(&self, sum: Output) -> Output {
        let (scope, dtype) = (self.scope, self.scope.dtype(sum));
        match (self.job.average, self.weight) {
            (Average::Sum, _) => sum,
            (Average::Mean, None) => scope.div(sum, scope.cast(self.group.size, dtype)),
            (Average::Mean, Some(weight)) => scope.div(sum, scope.cast(weight.total, dtype)),
        }
    }

    /// Returns the type in which gradients of type `dtype` are transferred.
    fn wire(&self, dtype: DType) -> DType {
        match self.job.wire {
            Wire::Bf16 if matches!(dtype, DType::Float | DType::Double) => DType::BFloat16,
            Wire::Bf16 | Wire::F32 => dtype,
        }
    }

    /// Returns the next collective of the group.
    fn next_instance(&self) -> Collective {
        self.instance(self.scope.constant(self.variables.take_instances(1)))
    }

    /// Returns the next collective of the group for tensors whose number of rows is a power of two.
    fn next_of_powers(&self, power: Output) -> Collective {
        let first = self.scope.constant(self.variables.take_instances(POWERS));
        self.instance(self.scope.add(first, power))
    }

    fn instance(&self, key: Output) -> Collective {
        Collective { timeout_seconds: STEP_TIMEOUT, ..self.group.instance(key) }
    }
}

impl AllReduceJob {
    /// Returns whether a worker of this job may lack a batch.
    pub(crate) fn joins(self) -> bool {
        self.uneven == Uneven::Join
    }
}

/// Returns the smallest power of two that is at least `count`, and its exponent: scalars `int32`.
fn padded_size(scope: &Scope, count: Output) -> (Output, Output) {
    let powers: Vec<i32> = (0..POWERS).map(|power| 1 << power).collect();
    let powers = scope.constant_vector(&powers);
    let smaller = scope.cast(scope.greater(count, powers), DType::Int32);
    let power = scope.sum(smaller, &[0], false);
    (scope.gather(powers, power, 0), power)
}

#[cfg(test)]
mod tests {
    use super::{Average, Uneven, Wire};
    use crate::{Initializer, Optimizer, Strategy, Tables, Variables};
    use graph::passes::assign_buckets;
    use graph::{BucketPlace, DType, Scope};

    /// Adds a dense layer of `outputs` units.
    fn layer(
        scope: &Scope,
        variables: &Variables,
        x: graph::Output,
        sizes: [usize; 2],
        name: &str,
    ) -> graph::Output {
        let weights = Initializer::Constant(0.5);
        let w = variables.get(&format!("{name}/w"), DType::Float, &sizes, &weights);
        let b = variables.get(&format!("{name}/b"), DType::Float, &sizes[1..], &Initializer::Zeros);
        scope.relu(scope.add(scope.matmul(x, w.value), b.value))
    }

    #[test]
    fn the_gradients_of_a_model_are_in_one_bucket() -> Result<(), Box<dyn std::error::Error>> {
        let scope = Scope::new();
        let variables = Variables::new(&scope);
        let (average, wire, uneven, tables) = (Average::Mean, Wire::F32, Uneven::Fail, Tables::Replicated);
        let strategy = Strategy::AllReduce { worker: 0, workers: 2, least: 2, average, wire, uneven, tables };
        let batch = scope.placeholder("x", DType::Float, [None, Some(8)]);
        strategy.minimize(
            &scope,
            &variables,
            &Optimizer::gradient_descent(0.1),
            &[],
            |scope, variables, _| {
                let hidden = layer(scope, variables, batch, [8, 16], "hidden");
                let output = layer(scope, variables, hidden, [16, 4], "output");
                scope.mean(scope.square(output), &[0, 1], false)
            },
        )?;
        let declared = scope.finish()?;
        let mut graph = declared.clone();
        assign_buckets(&mut graph, &declared)?;
        let places: Vec<BucketPlace> = graph.nodes().filter_map(|(_, node)| BucketPlace::of(node)).collect();
        let digest = places.first().ok_or("no bucket")?.digest;
        assert!(places.len() == 4 && places.iter().all(|p| p.digest == digest && p.count == 4), "{places:?}");
        Ok(())
    }
}
