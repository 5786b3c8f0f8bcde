//! What is trained: examples, and one model function that no strategy changes.

use graph::{Output, Scope, Tensor};
use train::{LearningRate, Optimizer, Variables};

/// Examples along the first axis of every tensor.
#[derive(Clone, Debug)]
pub(super) struct Examples {
    pub(super) features: Vec<Tensor>,
    /// The class of each, `int32 [n]`.
    pub(super) labels: Tensor,
}

/// A model: from a batch's features to scores of each class, `[n, classes]`, over variables that it asks for by name.
pub(super) type Scores = fn(&Scope, &Variables, &[Output]) -> Output;

#[derive(Clone, Debug)]
pub(super) struct Problem {
    /// What the examples are.
    pub(super) name: &'static str,
    pub(super) training: Examples,
    pub(super) held_out: Examples,
    pub(super) scores: Scores,
    pub(super) optimizer: fn(LearningRate) -> Optimizer,
    /// The learning rate after the first steps; it falls to 0 at the last one, so that what is left at the end does not
    /// depend on which examples came last.
    pub(super) rate: f64,
    /// Steps, and examples a step, unless the user says otherwise.
    pub(super) steps: u64,
    pub(super) batch: usize,
}

impl Examples {
    pub(super) fn len(&self) -> usize {
        self.labels.num_elements()
    }

    /// The features, then the labels.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        self.features.iter().chain([&self.labels]).cloned().collect()
    }
}
