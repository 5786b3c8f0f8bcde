//! Losses of linear models, with the steps of their dual problems.

use device::{Error, Result};

/// The steps of Newton's method, which converges quadratically.
const NEWTON_STEPS: usize = 10;

/// A loss of a prediction and a label.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loss {
    Logistic,
    Squared,
    Hinge,
    /// The hinge loss with a parabola of width 1 at the corner.
    SmoothHinge,
    Poisson,
}

/// The values of one example that a step of the dual problem uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct DualStep {
    pub(super) label: f64,
    pub(super) dual: f64,
    /// The prediction with the current weights.
    pub(super) prediction: f64,
    /// The change of the prediction per change of the dual value: the number of loss partitions times the example's weight
    /// times its squared norm, divided by the L2 regularization.
    pub(super) slope: f64,
}

impl Loss {
    pub(super) fn parse(name: &str) -> Result<Loss> {
        Ok(match name {
            "logistic_loss" => Loss::Logistic,
            "squared_loss" => Loss::Squared,
            "hinge_loss" => Loss::Hinge,
            "smooth_hinge_loss" => Loss::SmoothHinge,
            "poisson_loss" => Loss::Poisson,
            _ => return Err(Error::invalid(format!("Unsupported loss type: {name}"))),
        })
    }

    /// Returns the label as the loss uses it: classes 0 and 1 become -1 and 1.
    pub(super) fn label(self, label: f32) -> Result<f64> {
        match self {
            Loss::Squared => {}
            Loss::Poisson if label < 0.0 => device::invalid!(
                "Only non-negative labels can be used with the Poisson log loss. Found example with label: {label}"
            ),
            Loss::Poisson => {}
            _ if label == 0.0 => return Ok(-1.0),
            _ if label == 1.0 => {}
            _ => device::invalid!(
                "Only labels of 0.0 or 1.0 are supported right now. Found example with label: {label}"
            ),
        }
        Ok(label.into())
    }

    /// Returns the dual value that maximizes the dual objective of one example, for fixed values of the others.
    pub(super) fn updated_dual(self, step: DualStep) -> f64 {
        let DualStep { label, dual, prediction, slope } = step;
        match self {
            Loss::Logistic => {
                // The dual value is (1 + tanh(x)) / 2 / label.
                let x = (0..NEWTON_STEPS).fold(0.0f64, |x, _| {
                    let t = x.tanh();
                    let value = -2.0 * label * x - prediction - slope * (0.5 * (1.0 + t) / label - dual);
                    let derivative = -2.0 * label - slope * (1.0 - t * t) * 0.5 / label;
                    x - value / derivative
                });
                0.5 * (1.0 + x.tanh()) / label
            }
            Loss::Squared => dual + (label - dual - prediction) / (1.0 + slope),
            Loss::Hinge => clipped(dual + (label - prediction) / slope, label),
            Loss::SmoothHinge => clipped(dual + (label - prediction - dual) / (slope + 1.0), label),
            Loss::Poisson => {
                // The dual value is label - exp(x).
                let rest = label - dual;
                let start = if rest > 0.0 { rest.ln() } else { 0.0 };
                let x = (0..NEWTON_STEPS).fold(start, |x, _| {
                    let e = x.exp();
                    x - (x - prediction - slope * (rest - e)) / (1.0 + slope * e)
                });
                label - x.exp()
            }
        }
    }

    /// Returns the loss of a prediction, for an example of weight 1.
    pub(super) fn primal(self, prediction: f64, label: f64) -> f64 {
        let product = label * prediction;
        match self {
            Loss::Logistic if product > 0.0 => (-product).exp().ln_1p(),
            Loss::Logistic => product.exp().ln_1p() - product,
            Loss::Squared => (prediction - label) * (prediction - label) * 0.5,
            // A product of NaN has no loss, like in TensorFlow.
            Loss::Hinge => (1.0 - product).max(0.0),
            Loss::SmoothHinge if product >= 1.0 => 0.0,
            Loss::SmoothHinge if product <= 0.0 => 0.5 - product,
            Loss::SmoothHinge => (1.0 - product) * (1.0 - product) * 0.5,
            Loss::Poisson => prediction.exp() - prediction * label,
        }
    }

    /// Returns the dual loss of an example, the weighted convex conjugate of the loss at the negative dual value. It is
    /// infinite outside the domain of the hinge and Poisson losses, for every weight.
    pub(super) fn dual(self, dual: f64, label: f64, weight: f64) -> f64 {
        if let Some(loss) = self.conjugate(dual, label) { loss * weight } else { f64::INFINITY }
    }

    fn conjugate(self, dual: f64, label: f64) -> Option<f64> {
        let product = dual * label;
        let entropy = |p: f64| if p > 0.0 { p * p.ln() } else { 0.0 };
        Some(match self {
            Loss::Logistic => entropy(product) + entropy(1.0 - product),
            Loss::Squared => dual * (0.5 * dual - label),
            Loss::Hinge | Loss::SmoothHinge if product < 0.0 => return None,
            Loss::Hinge | Loss::SmoothHinge if product > 1.0 => return None,
            Loss::Hinge => -product,
            Loss::SmoothHinge => -product + 0.5 * dual * dual,
            Loss::Poisson => match label - dual {
                0.0 => 0.0,
                rest if rest < 0.0 => return None,
                rest => rest * (rest.ln() - 1.0),
            },
        })
    }

    /// Returns the derivative of the loss with respect to the prediction, for an example of weight 1.
    pub(super) fn derivative(self, prediction: f64, label: f64) -> f64 {
        let product = label * prediction;
        match self {
            Loss::Logistic if product > 0.0 => -label * (-product).exp() / (1.0 + (-product).exp()),
            Loss::Logistic => -label / (1.0 + product.exp()),
            Loss::Squared => prediction - label,
            Loss::Hinge if product < 1.0 => -label,
            Loss::SmoothHinge if product <= 0.0 => -label,
            Loss::SmoothHinge if product < 1.0 => prediction - label,
            Loss::Hinge | Loss::SmoothHinge => 0.0,
            Loss::Poisson => prediction.exp() - label,
        }
    }

    /// Returns the inverse of the Lipschitz constant of the derivative; 0 for the hinge loss, whose derivative jumps.
    pub(super) fn smoothness(self) -> f64 {
        match self {
            Loss::Logistic => 4.0,
            Loss::Hinge => 0.0,
            Loss::Squared | Loss::SmoothHinge | Loss::Poisson => 1.0,
        }
    }
}

/// Returns the dual value nearest to `dual` whose product with the label is in `0..=1`.
fn clipped(dual: f64, label: f64) -> f64 {
    match label * dual {
        product if product < 0.0 => 0.0,
        product if product > 1.0 => label,
        _ => dual,
    }
}
