//! Builders of activation functions.

use super::Scope;
use crate::graph::Output;

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident = $op:literal;)*) => {
        impl Scope {
            $($(#[$doc])* pub fn $name(&self, x: Output) -> Output {
                self.op($op).input(x).output()
            })*
        }
    };
}

activations! {
    /// Returns `max(x, 0)`.
    relu = "Relu";
    /// Returns `min(max(x, 0), 6)`.
    relu6 = "Relu6";
    /// Returns `x`, or `exp(x) - 1` where `x` is negative.
    elu = "Elu";
    /// Returns the scaled exponential linear unit, the self-normalizing variant of [`Scope::elu`].
    selu = "Selu";
    /// Returns `ln(1 + exp(x))`.
    softplus = "Softplus";
    /// Returns `x / (1 + |x|)`.
    softsign = "Softsign";
    /// Returns half the sum of the squares of all elements, a scalar.
    l2_loss = "L2Loss";
}

impl Scope {
    /// Returns `x`, or `alpha * x` where `x` is negative.
    pub fn leaky_relu(&self, x: Output, alpha: f32) -> Output {
        self.op("LeakyRelu").input(x).attr("alpha", alpha).output()
    }
}
