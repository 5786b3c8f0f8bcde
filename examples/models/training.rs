//! A model with its training step, on a constant batch that is stored on the model's device.

use super::Layers;
use graph::{DType, Graph, NodeId, Output, Result, Scope, Shape, Tensor};
use train::{Initializer, Optimizer, Strategy, Training, Variables};

/// The training data: random inputs of shape `shape`, and random labels less than `classes`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) shape: &'a [usize],
    /// Number of examples, each with a label: the size of the inputs' first axis, or of the second axis if the first
    /// axis is time.
    pub(crate) examples: usize,
    pub(crate) classes: usize,
}

/// A model with its training step.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) graph: Graph,
    pub(crate) training: Training,
    /// The inputs of the batch.
    pub(crate) inputs: Output,
    /// The node that runs a training step and updates the model's running averages.
    pub(crate) step: NodeId,
    /// The global step after a training step, `int64`. A fetch of this output runs a step and waits for its end.
    pub(crate) done: Output,
}

impl Model {
    /// Builds a model with its training step. `scores` returns the scores `[examples, classes]` of the
    /// batch's inputs.
    ///
    /// # Errors
    /// The errors of the model's graph.
    pub(crate) fn build(
        device: &str,
        batch: Batch<'_>,
        optimizer: &Optimizer,
        scores: impl Fn(&Layers<'_>, Output) -> Output,
    ) -> Result<Model> {
        let scope = Scope::new().device(device);
        let variables = Variables::new(&scope);
        let normal = Initializer::TruncatedNormal { stddev: 1.0, seed: 1 };
        let inputs = variables.get_untrained("batch/inputs", DType::Float, batch.shape, &normal);
        let labels = Initializer::Value(labels(batch)?);
        let labels = variables.get_untrained("batch/labels", DType::Int64, &[batch.examples], &labels);
        let averages = std::cell::RefCell::default();
        let data = [inputs.value, labels.value];
        let training =
            Strategy::Local.minimize(&scope, &variables, optimizer, &data, |scope, variables, data| {
                let layers = Layers::new(scope, variables);
                let losses = scope.sparse_softmax_cross_entropy(scores(&layers, data[0]), data[1]);
                averages.replace(layers.averages());
                scope.mean(losses, &[0], false)
            })?;
        let all = [averages.into_inner(), vec![training.train]].concat();
        let step = scope.group(&all);
        let counter = variables.global_step().handle;
        let done = scope.control(&[step]).read_variable(counter, DType::Int64);
        Ok(Model { graph: scope.finish()?, training, inputs: inputs.value, step, done })
    }

    /// Returns the number of trained parameters.
    pub(crate) fn parameters(&self) -> usize {
        self.training.variables.trainable().iter().map(|variable| variable.shape.num_elements()).sum()
    }
}

/// Returns a pseudorandom label in `0..classes` for each example.
fn labels(batch: Batch<'_>) -> Result<Tensor> {
    let label = |i: usize| (i.wrapping_mul(2_654_435_761) >> 7) % batch.classes;
    let labels: Vec<i64> = (0..batch.examples).map(|i| label(i) as i64).collect();
    Tensor::from_slice(&labels, Shape::new(&[batch.examples])?)
}
