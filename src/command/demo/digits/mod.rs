//! The training problem `digits`: images of handwritten digits, and a classifier with one hidden layer.

mod images;

use super::layers::dense;
use super::problem::Problem;
use graph::{Output, Scope};
use images::{CLASSES, Digits, PIXELS};
use std::error::Error;
use train::{Optimizer, Variables};

/// Number of units of the hidden layer.
const HIDDEN: usize = 96;

pub(super) fn problem() -> Result<Problem, Box<dyn Error + Send + Sync>> {
    let digits = Digits::load()?;
    Ok(Problem {
        name: "digits",
        training: digits.training.examples()?,
        held_out: digits.held_out.examples()?,
        scores,
        optimizer: Optimizer::adam,
        rate: 0.004,
        steps: 600,
        batch: 64,
    })
}

/// Returns the score of each class, `[n, 10]`, for images `[n, 64]`.
fn scores(scope: &Scope, variables: &Variables, features: &[Output]) -> Output {
    let hidden = scope.relu(dense(scope, variables, "hidden", features[0], PIXELS, HIDDEN));
    dense(scope, variables, "scores", hidden, HIDDEN, CLASSES)
}
