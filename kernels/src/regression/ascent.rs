//! `SdcaOptimizer`: linear models trained by stochastic dual coordinate ascent (Shalev-Shwartz and Zhang, 2013). A step
//! visits the examples of a batch in random order; each example changes its own dual value and the weights.

use super::loss::{DualStep, Loss};
use crate::numeric::scratch::check_scratch;
use crate::random::{WordStream, Words};
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::Tensor;
use rustc_hash::{FxHashMap, FxHashSet};

/// The values of an example in the state: dual value, primal loss, dual loss, weight.
const STATE: usize = 4;

/// The factor by which the probability of an example falls each time that the example is drawn.
const DECAY: f64 = 0.1;

/// Attributes of the op.
struct Settings {
    loss: Loss,
    is_adaptive: bool,
    sparse: usize,
    valued: usize,
    dense: usize,
    /// The L1 regularization divided by the L2 regularization.
    shrinkage: f32,
    l2: f64,
    partitions: f32,
}

/// Moves a weight towards zero by `shrinkage`, at most to zero; NaN becomes zero.
fn shrunk(weight: f64, shrinkage: f32) -> f64 {
    let rest = (weight.abs() - f64::from(shrinkage)).max(0.0);
    if rest > 0.0 { rest.copysign(weight) } else { 0.0 }
}

/// The same for the weights of dense columns, in single precision: NaN stays NaN, like in TensorFlow.
fn shrunk_dense(weight: f32, shrinkage: f32) -> f64 {
    let rest = weight.abs() - shrinkage;
    let moved = if rest > 0.0 || rest.is_nan() { rest.copysign(weight) } else { 0.0 };
    moved.into()
}

/// A sparse feature column: for each example the weights that its features use, with the features' values.
struct SparseColumn {
    /// The end of each example's features; the first example's features begin at 0.
    ends: Vec<usize>,
    /// The number of each feature's weight.
    places: Vec<usize>,
    /// The values of the features; 1 for columns without values.
    values: Option<Tensor>,
    weights: Tensor,
    deltas: Tensor,
}

/// A dense feature column: a matrix with a row for each example, and a weight for each column of the matrix.
struct DenseColumn {
    features: Tensor,
    weights: Tensor,
    deltas: Tensor,
}

/// A batch of examples with the weights of the model.
struct Batch {
    labels: Vec<f64>,
    weights: Vec<f32>,
    norms: Vec<f64>,
    sparse: Vec<SparseColumn>,
    dense: Vec<DenseColumn>,
}

/// Makes the kernel. `adaptive` is the name of the attribute that turns on sampling by the examples' losses.
pub(super) fn ascend(init: &KernelInit<'_>, adaptive: &str) -> Result<Kernel> {
    let count = |name: &str| Ok::<usize, Error>(usize::try_from(init.attr::<i64>(name)?).unwrap_or(0));
    let (l1, l2) = (init.attr::<f32>("l1")?, init.attr::<f32>("l2")?);
    let settings = Settings {
        loss: Loss::parse(&init.attr::<String>("loss_type")?)?,
        is_adaptive: init.attr(adaptive)?,
        sparse: count("num_sparse_features")?,
        valued: count("num_sparse_features_with_values")?,
        dense: count("num_dense_features")?,
        shrinkage: l1 / l2,
        l2: l2.into(),
        partitions: init.attr::<i64>("num_loss_partitions")? as f32,
    };
    if settings.sparse + settings.dense == 0 {
        device::invalid!("Requires at least one feature to train.");
    }
    let stream = WordStream::seeded([0, 0]);
    Kernel::sync(move |ctx| step(ctx, &settings, &stream))
}

fn step(ctx: &mut KernelContext<'_>, settings: &Settings, stream: &WordStream) -> Result<()> {
    let mut batch = Batch::read(ctx, settings)?;
    let mut state = ctx.take_input(ctx.num_inputs() - 1)?;
    let examples = batch.labels.len();
    match state.shape().dims() {
        [rows, STATE] if *rows == examples => {}
        [_, _] => {
            device::invalid!(
                "Expected shape [{examples},{STATE}] for example_state_data, got {}",
                state.shape()
            )
        }
        other => device::invalid!("example_state_data must be rank 2 but is rank {}", other.len()),
    }
    let values = state.values_mut::<f32>()?;
    check_scratch::<[usize; 4]>(examples)?;
    let order = if settings.is_adaptive {
        let chances = batch.chances(settings, values)?;
        sampled(&chances, stream)
    } else {
        shuffled(examples, stream)
    };
    for example in order {
        ctx.check_cancelled()?;
        let (label, weight) = (batch.labels[example], f64::from(batch.weights[example]));
        let dual = f64::from(values[example * STATE]);
        let [before, prediction] = batch.predictions(settings, example)?;
        let slope = f64::from(settings.partitions) * (batch.norms[example] / settings.l2) * weight;
        let updated = settings.loss.updated_dual(DualStep { label, dual, prediction, slope });
        batch.update(example, (updated - dual) * weight / settings.l2)?;
        let primal = settings.loss.primal(before, label) * weight;
        let conjugate = settings.loss.dual(dual, label, weight);
        let entries = [updated, primal, conjugate, weight].map(|value| value as f32);
        values[example * STATE..][..STATE].copy_from_slice(&entries);
    }
    ctx.set_output(0, state);
    let deltas = batch.sparse.into_iter().map(|column| column.deltas);
    for (i, deltas) in deltas.chain(batch.dense.into_iter().map(|column| column.deltas)).enumerate() {
        ctx.set_output(1 + i, deltas);
    }
    Ok(())
}

impl Batch {
    /// Reads the inputs and checks that they agree.
    fn read(ctx: &KernelContext<'_>, settings: &Settings) -> Result<Batch> {
        let Settings { sparse, valued, dense, .. } = *settings;
        // The numbers of the first input of each list.
        let features = sparse;
        let values = features + sparse;
        let rows = values + valued;
        let example_weights = rows + dense;
        let indices = example_weights + 2;
        let sparse_weights = indices + sparse;
        let dense_weights = sparse_weights + sparse;
        let weights = ctx.input(example_weights)?.values::<f32>()?.to_vec();
        let labels = ctx.input(example_weights + 1)?.values::<f32>()?;
        if labels.len() != weights.len() {
            device::invalid!("Expected {} example labels but got {}", weights.len(), labels.len());
        }
        let labels = labels.iter().map(|label| settings.loss.label(*label)).collect::<Result<Vec<_>>>()?;
        let columns = (0..sparse).map(|i| {
            let values = if i < valued { Some(ctx.input(values + i)?) } else { None };
            let features = [ctx.input(i)?, ctx.input(features + i)?];
            SparseColumn::read(
                labels.len(),
                features,
                values,
                ctx.input(indices + i)?,
                ctx.input(sparse_weights + i)?,
            )
        });
        let sparse = columns.collect::<Result<Vec<_>>>()?;
        let columns = (0..dense)
            .map(|i| DenseColumn::read(i, labels.len(), ctx.input(rows + i)?, ctx.input(dense_weights + i)?));
        let dense = columns.collect::<Result<Vec<_>>>()?;
        let mut batch = Batch { norms: vec![0.0; labels.len()], labels, weights, sparse, dense };
        for example in 0..batch.labels.len() {
            let mut norm = 0.0;
            for column in &batch.sparse {
                norm += column.features(example)?.map(|(_, value)| value * value).sum::<f64>();
            }
            for column in &batch.dense {
                norm += f64::from(column.row(example)?.iter().map(|x| x * x).sum::<f32>());
            }
            batch.norms[example] = norm;
        }
        Ok(batch)
    }

    /// Returns the predictions for an example: with the weights at the start of the step, and with the current weights.
    fn predictions(&self, settings: &Settings, example: usize) -> Result<[f64; 2]> {
        let shrinkage = settings.shrinkage;
        let [mut before, mut current] = [0.0; 2];
        for column in &self.sparse {
            let (weights, deltas) = (column.weights.values::<f32>()?, column.deltas.values::<f32>()?);
            for (place, value) in column.features(example)? {
                let weight = weights[place];
                before += value * shrunk(weight.into(), shrinkage);
                current += value * shrunk((weight + deltas[place] * settings.partitions).into(), shrinkage);
            }
        }
        for column in &self.dense {
            let (weights, deltas) = (column.weights.values::<f32>()?, column.deltas.values::<f32>()?);
            for ((x, weight), delta) in column.row(example)?.iter().zip(weights).zip(deltas) {
                let x = f64::from(*x);
                before += x * shrunk_dense(*weight, shrinkage);
                current += x * shrunk_dense(weight + delta * settings.partitions, shrinkage);
            }
        }
        Ok([before, current])
    }

    /// Adds an example's features times `by` to the changes of the weights.
    fn update(&mut self, example: usize, by: f64) -> Result<()> {
        for column in &mut self.sparse {
            let mut deltas = std::mem::replace(&mut column.deltas, Tensor::scalar(0f32));
            let all = deltas.values_mut::<f32>()?;
            for (place, value) in column.features(example)? {
                all[place] = (f64::from(all[place]) + value * by) as f32;
            }
            column.deltas = deltas;
        }
        for column in &mut self.dense {
            let width = column.weights.num_elements();
            let row = &column.features.values::<f32>()?[example * width..][..width];
            for (delta, x) in column.deltas.values_mut::<f32>()?.iter_mut().zip(row) {
                *delta += x * by as f32;
            }
        }
        Ok(())
    }

    /// Returns the unnormalized probability of each example: large where the dual value is far from its optimum.
    fn chances(&self, settings: &Settings, state: &[f32]) -> Result<Vec<f64>> {
        let chance = |example: usize| {
            let [_, prediction] = self.predictions(settings, example)?;
            let slope = settings.loss.derivative(prediction, self.labels[example]);
            let distance = (f64::from(state[example * STATE]) + slope).abs();
            let scale = (self.norms[example] + settings.l2 * settings.loss.smoothness()).sqrt();
            Ok(f64::from(self.weights[example]) * scale * distance)
        };
        (0..self.labels.len()).map(chance).collect()
    }
}

impl SparseColumn {
    /// Reads a column. The examples of the features are in ascending order; features after a descent are left out, like in
    /// TensorFlow.
    fn read(
        examples: usize,
        [of_examples, features]: [&Tensor; 2],
        values: Option<&Tensor>,
        indices: &Tensor,
        weights: &Tensor,
    ) -> Result<SparseColumn> {
        let (of_examples, features) = (of_examples.values::<i64>()?, features.values::<i64>()?);
        if of_examples.len() != features.len() {
            device::invalid!(
                "Found mismatched example_indices and feature_indices: {} and {} elements",
                of_examples.len(),
                features.len()
            );
        }
        if let Some(values) = values
            && values.num_elements() < features.len()
        {
            device::invalid!(
                "sparse_feature_values has {} elements, not {}",
                values.num_elements(),
                features.len()
            );
        }
        let indices = indices.values::<i64>()?;
        if indices.len() > weights.num_elements() {
            device::invalid!(
                "{} sparse_indices for {} sparse_weights",
                indices.len(),
                weights.num_elements()
            );
        }
        let place_of: FxHashMap<i64, usize> =
            indices.iter().enumerate().map(|(i, index)| (*index, i)).collect();
        check_scratch::<usize>(examples)?;
        let (mut ends, mut places) = (Vec::with_capacity(examples), Vec::new());
        let mut seen = FxHashSet::default();
        for example in 0..examples {
            seen.clear();
            while let Some(feature) = features.get(places.len())
                && of_examples[places.len()] == example as i64
            {
                let Some(place) = place_of.get(feature) else {
                    device::invalid!("Found sparse feature indices out of valid range: {feature}");
                };
                if !seen.insert(*feature) {
                    device::invalid!("Duplicate index in sparse vector.");
                }
                places.push(*place);
            }
            ends.push(places.len());
        }
        let deltas = Tensor::zeros(graph::DType::Float, weights.shape().clone())?;
        Ok(SparseColumn { ends, places, values: values.cloned(), weights: weights.clone(), deltas })
    }

    /// Returns the numbers of the weights and the values of an example's features.
    fn features(&self, example: usize) -> Result<impl Iterator<Item = (usize, f64)>> {
        let start = example.checked_sub(1).map_or(0, |previous| self.ends[previous]);
        let values = self.values.as_ref().map(|values| values.values::<f32>()).transpose()?;
        let at = start..self.ends[example];
        Ok(at.map(move |i| (self.places[i], values.map_or(1.0, |values| f64::from(values[i])))))
    }
}

impl DenseColumn {
    /// Reads column `i` of a batch.
    fn read(i: usize, examples: usize, features: &Tensor, weights: &Tensor) -> Result<DenseColumn> {
        let [rows, width] = features.shape().dims() else {
            device::invalid!(
                "Dense features at index {i} must be rank 2 but is rank {}",
                features.shape().rank()
            );
        };
        if *width == 0 || *width > weights.num_elements() {
            device::invalid!("More dense features than we have parameters for: {width}");
        }
        if *rows != examples || *width != weights.num_elements() {
            device::invalid!(
                "dense_features at index {i} have shape {} for {examples} examples and {} dense_weights",
                features.shape(),
                weights.num_elements()
            );
        }
        let deltas = Tensor::zeros(graph::DType::Float, weights.shape().clone())?;
        Ok(DenseColumn { features: features.clone(), weights: weights.clone(), deltas })
    }

    /// Returns the features of an example.
    fn row(&self, example: usize) -> Result<&[f32]> {
        let width = self.weights.num_elements();
        Ok(&self.features.values::<f32>()?[example * width..][..width])
    }
}

/// Returns the numbers below `count` in random order.
fn shuffled(count: usize, stream: &WordStream) -> Vec<usize> {
    let mut words = stream.reserve(2 * count);
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        order.swap(i, (words.unit_f64() * (i + 1) as f64) as usize);
    }
    order
}

/// Draws as many examples as there are, by their chances. An example's chance falls with each time that it is drawn; if
/// examples are rejected too often, the rest are those that were not drawn, the likeliest first.
fn sampled(chances: &[f64], stream: &WordStream) -> Vec<usize> {
    let count = chances.len();
    let sums: Vec<f64> = chances
        .iter()
        .scan(0.0, |sum, chance| {
            *sum += chance;
            Some(*sum)
        })
        .collect();
    let total = sums.last().copied().unwrap_or(0.0);
    if !(total > 0.0 && total.is_finite()) {
        return shuffled(count, stream);
    }
    let mut words: Words = stream.reserve(8 * count);
    let (mut drawn, mut order) = (vec![0i32; count], Vec::with_capacity(count));
    let mut rejected = 0;
    while order.len() < count && rejected < count {
        let find = words.unit_f64() * total;
        let example = sums.partition_point(|sum| *sum <= find).min(count - 1);
        if words.unit_f64() > DECAY.powi(drawn[example]) {
            rejected += 1;
            continue;
        }
        drawn[example] += 1;
        order.push(example);
    }
    let mut rest: Vec<usize> = (0..count).filter(|example| drawn[*example] == 0).collect();
    rest.sort_by(|a, b| chances[*b].total_cmp(&chances[*a]));
    rest.truncate(count - order.len());
    order.extend(rest);
    order
}

#[cfg(test)]
mod tests {
    use super::{sampled, shuffled};
    use crate::random::WordStream;

    #[test]
    fn each_example_is_visited_once_without_adaptive_sampling() {
        let mut order = shuffled(1000, &WordStream::seeded([1, 2]));
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn adaptive_sampling_prefers_examples_of_large_chance() {
        let chances: Vec<f64> = (0..100).map(|i| if i < 10 { 100.0 } else { 1.0 }).collect();
        let order = sampled(&chances, &WordStream::seeded([1, 2]));
        assert_eq!(order.len(), 100);
        let first: Vec<usize> = order[..10].iter().copied().filter(|i| *i < 10).collect();
        assert!(first.len() > 5, "{order:?}");
        assert_eq!(sampled(&[0.0; 5], &WordStream::seeded([1, 2])).len(), 5);
        assert!(sampled(&[], &WordStream::seeded([1, 2])).is_empty());
    }
}
