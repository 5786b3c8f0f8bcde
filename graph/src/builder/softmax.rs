//! Builders of softmax and of cross entropies.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Probabilities out of logits, along the last axis.
    pub fn softmax(&self, logits: Output) -> Output {
        self.op("Softmax").input(logits).output()
    }

    /// The logarithm of [`Scope::softmax`].
    pub fn log_softmax(&self, logits: Output) -> Output {
        self.op("LogSoftmax").input(logits).output()
    }

    /// The loss `[batch]` of logits `[batch, classes]` against probabilities of the same shape.
    pub fn softmax_cross_entropy(&self, logits: Output, labels: Output) -> Output {
        self.op("SoftmaxCrossEntropyWithLogits").input(logits).input(labels).output()
    }

    /// The loss `[batch]` of logits `[batch, classes]` against the right class of each: integers `[batch]`.
    pub fn sparse_softmax_cross_entropy(&self, logits: Output, labels: Output) -> Output {
        self.op("SparseSoftmaxCrossEntropyWithLogits").input(logits).input(labels).output()
    }
}
