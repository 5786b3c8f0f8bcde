//! A multilayer perceptron.

use super::Layers;
use graph::Output;

/// Returns the scores `[n, classes]` of vectors `[n, k]`, computed with two hidden layers.
pub(crate) fn mlp(layers: &Layers<'_>, x: Output, hidden: usize, classes: usize) -> Output {
    let x = layers.scope.relu(layers.dense("hidden_1", x, hidden));
    let x = layers.scope.relu(layers.dense("hidden_2", x, hidden));
    layers.dense("scores", x, classes)
}
