//! A training problem: examples, and a model function that is the same for all strategies.

use graph::{Output, Scope, Tensor};
use train::{LearningRate, Optimizer, Variables};

/// A set of `n` examples: the first axis of every tensor has one entry for each example.
#[derive(Clone, Debug)]
pub(super) struct Examples {
    pub(super) features: Vec<Tensor>,
    /// Class of each example, `int32 [n]`.
    pub(super) labels: Tensor,
}

/// A model function, which computes the score of each class, `[n, classes]`, from a batch's features and from variables
/// requested by name.
pub(super) type Scores = fn(&Scope, &Variables, &[Output]) -> Output;

#[derive(Clone, Debug)]
pub(super) struct Problem {
    /// Plural noun for the examples in the report, such as "digits".
    pub(super) name: &'static str,
    pub(super) training: Examples,
    pub(super) held_out: Examples,
    pub(super) scores: Scores,
    pub(super) optimizer: fn(LearningRate) -> Optimizer,
    /// The peak learning rate. The rate decays to 0 at the last step, so that the result does not depend much on the
    /// examples of the last steps.
    pub(super) rate: f64,
    /// Default number of training steps.
    pub(super) steps: u64,
    pub(super) batch: usize,
}

impl Examples {
    pub(super) fn len(&self) -> usize {
        self.labels.num_elements()
    }

    /// Returns the features, followed by the labels.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        self.features.iter().chain([&self.labels]).cloned().collect()
    }
}
