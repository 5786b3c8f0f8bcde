//! Builders of softmax and cross entropies.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Converts logits to probabilities along the last axis.
    pub fn softmax(&self, logits: Output) -> Output {
        self.op("Softmax").input(logits).output()
    }

    /// Returns the logarithm of [`Scope::softmax`].
    pub fn log_softmax(&self, logits: Output) -> Output {
        self.op("LogSoftmax").input(logits).output()
    }

    /// Returns the loss `[batch]` of logits `[batch, classes]` against probabilities of the same shape.
    pub fn softmax_cross_entropy(&self, logits: Output, labels: Output) -> Output {
        self.op("SoftmaxCrossEntropyWithLogits").input(logits).input(labels).output()
    }

    /// Returns the loss `[batch]` of logits `[batch, classes]` against the correct classes, integers `[batch]`.
    pub fn sparse_softmax_cross_entropy(&self, logits: Output, labels: Output) -> Output {
        self.op("SparseSoftmaxCrossEntropyWithLogits").input(logits).input(labels).output()
    }
}
