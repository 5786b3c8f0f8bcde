//! Layers of the demo's models.

use graph::{DType, Output, Scope};
use train::{Initializer, Variables};

/// Adds a dense layer from `[n, from]` to `[n, to]`, without an activation.
pub(super) fn dense(
    scope: &Scope,
    variables: &Variables,
    name: &str,
    x: Output,
    from: usize,
    to: usize,
) -> Output {
    let first = Initializer::GlorotUniform { seed: to as i64 };
    let weights = variables.get(&format!("{name}/weights"), DType::Float, &[from, to], &first);
    let biases = variables.get(&format!("{name}/biases"), DType::Float, &[to], &Initializer::Zeros);
    scope.bias_add(scope.matmul(x, weights.value), biases.value)
}
