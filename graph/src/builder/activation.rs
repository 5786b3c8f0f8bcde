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
    /// `max(x, 0)`
    relu = "Relu";
    /// `min(max(x, 0), 6)`
    relu6 = "Relu6";
    /// `x`, or `exp(x) - 1` below 0
    elu = "Elu";
    /// The self-normalising variant of [`Scope::elu`]
    selu = "Selu";
    /// `ln(1 + exp(x))`
    softplus = "Softplus";
    /// `x / (1 + |x|)`
    softsign = "Softsign";
    /// Half the sum of squares: a scalar
    l2_loss = "L2Loss";
}

impl Scope {
    /// `x`, or `alpha * x` below 0.
    pub fn leaky_relu(&self, x: Output, alpha: f32) -> Output {
        self.op("LeakyRelu").input(x).attr("alpha", alpha).output()
    }
}
