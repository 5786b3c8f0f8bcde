//! Clipping of gradients, which each replica does before gradients are averaged.

use crate::gradient::Gradient;
use crate::initializer::number;
use crate::variables::Variable;
use graph::{DType, Output, Scope};

/// The method that clips gradients. For a sparse gradient, only the elements of its rows are clipped and count for a
/// norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Limits each element to `min..=max`.
    Value { min: f64, max: f64 },
    /// Scales each variable's gradient down to this Euclidean norm if its norm is greater.
    Norm(f64),
    /// Scales all gradients by one factor, so that the Euclidean norm over all gradients together is at most the given
    /// norm. If an element is infinite or not a number, all elements become not a number, so that the error is not
    /// hidden.
    GlobalNorm(f64),
}

impl Clip {
    /// Adds the nodes that clip each variable's gradient, and returns the clipped gradients.
    pub fn apply(self, scope: &Scope, gradients: Vec<(Variable, Gradient)>) -> Vec<(Variable, Gradient)> {
        let each = |clip: &dyn Fn(Output) -> Output| {
            gradients.iter().map(|(variable, gradient)| (variable.clone(), gradient.map(clip))).collect()
        };
        match self {
            Clip::Value { min, max } => each(&|values| {
                let n = |value| number(scope, scope.dtype(values), value);
                scope.clip(values, n(min), n(max))
            }),
            Clip::Norm(norm) => each(&|values| {
                let most = number(scope, scope.dtype(values), norm);
                let actual = scope.sqrt(squares(scope, values));
                scope.div(scope.mul(values, most), scope.maximum(actual, most))
            }),
            Clip::GlobalNorm(norm) => {
                let scale = |values: Output, all: Output| {
                    let all = scope.cast(all, scope.dtype(values));
                    let most = number(scope, scope.dtype(values), norm);
                    // `all - all` is 0 for a finite norm, and not a number for an infinite one.
                    let finite = scope.add(scope.div(most, scope.maximum(all, most)), scope.sub(all, all));
                    scope.mul(values, finite)
                };
                let all = global_norm(scope, &gradients);
                each(&|values| scale(values, all))
            }
        }
    }
}

/// Returns the Euclidean norm over all gradients together, a scalar `double`.
pub fn global_norm(scope: &Scope, gradients: &[(Variable, Gradient)]) -> Output {
    let sums: Vec<Output> = gradients
        .iter()
        .map(|(_, gradient)| scope.cast(squares(scope, gradient.values()), DType::Double))
        .collect();
    match sums.as_slice() {
        [] => scope.constant(0.0),
        sums => scope.sqrt(scope.op("AddN").input(sums).output()),
    }
}

/// Returns the sum of the squares of all elements.
fn squares(scope: &Scope, values: Output) -> Output {
    scope.sum(scope.square(scope.reshape(values, &[-1])), &[0], false)
}
