//! Optimizers: which update op a gradient goes into, and which slots it keeps.

use crate::initializer::{Initializer, number};
use crate::variables::{Variable, Variables};
use graph::{DType, NodeId, Output, Scope};

/// An optimizer with its rates. Names and defaults of the rates are TensorFlow's.
#[derive(Clone, Debug, PartialEq)]
pub enum Optimizer {
    GradientDescent { learning_rate: f64 },
    Momentum { learning_rate: f64, momentum: f64, use_nesterov: bool },
    Adam { learning_rate: f64, beta1: f64, beta2: f64, epsilon: f64 },
    Adagrad { learning_rate: f64, initial_accumulator_value: f64 },
    RmsProp { learning_rate: f64, decay: f64, momentum: f64, epsilon: f64 },
    Ftrl { learning_rate: f64, learning_rate_power: f64, initial_accumulator_value: f64, l1: f64, l2: f64 },
}

impl Optimizer {
    pub fn gradient_descent(learning_rate: f64) -> Optimizer {
        Optimizer::GradientDescent { learning_rate }
    }

    pub fn momentum(learning_rate: f64, momentum: f64) -> Optimizer {
        Optimizer::Momentum { learning_rate, momentum, use_nesterov: false }
    }

    pub fn adam(learning_rate: f64) -> Optimizer {
        Optimizer::Adam { learning_rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }

    pub fn adagrad(learning_rate: f64) -> Optimizer {
        Optimizer::Adagrad { learning_rate, initial_accumulator_value: 0.1 }
    }

    pub fn rms_prop(learning_rate: f64) -> Optimizer {
        Optimizer::RmsProp { learning_rate, decay: 0.9, momentum: 0.0, epsilon: 1e-10 }
    }

    pub fn ftrl(learning_rate: f64) -> Optimizer {
        Optimizer::Ftrl {
            learning_rate,
            learning_rate_power: -0.5,
            initial_accumulator_value: 0.1,
            l1: 0.0,
            l2: 0.0,
        }
    }

    /// Adds the updates of these variables by these gradients; the node runs them all, beside the variables.
    pub fn apply(&self, scope: &Scope, variables: &Variables, gradients: &[(Variable, Output)]) -> NodeId {
        let mut updates = Vec::with_capacity(gradients.len() + 2);
        for (variable, gradient) in gradients {
            let beside = scope.colocate_with(variable.handle.node);
            updates.push(self.update(&beside, variables, variable, *gradient));
        }
        updates.extend(self.after_updates(scope, variables, gradients, &updates));
        scope.group(&updates)
    }

    /// One variable's update op: the variable, its slots, the rates, the gradient, in the op's order.
    fn update(&self, scope: &Scope, variables: &Variables, variable: &Variable, gradient: Output) -> NodeId {
        let rate = |value: f64| number(scope, variable.dtype, value);
        let slot =
            |name: &str, first: f64| variables.slot(variable, name, &Initializer::Constant(first)).handle;
        match *self {
            Optimizer::GradientDescent { learning_rate } => scope
                .op("ResourceApplyGradientDescent")
                .input(variable.handle)
                .input(rate(learning_rate))
                .input(gradient)
                .node(),
            Optimizer::Momentum { learning_rate, momentum, use_nesterov } => scope
                .op("ResourceApplyMomentum")
                .input(variable.handle)
                .input(slot("Momentum", 0.0))
                .input(rate(learning_rate))
                .input(gradient)
                .input(rate(momentum))
                .attr("use_nesterov", use_nesterov)
                .node(),
            Optimizer::Adam { learning_rate, beta1, beta2, epsilon } => {
                let (beta1_power, beta2_power) = adam_powers(variables, variable, beta1, beta2);
                scope
                    .op("ResourceApplyAdam")
                    .input(variable.handle)
                    .input(slot("Adam", 0.0))
                    .input(slot("Adam_1", 0.0))
                    .input(beta1_power.value)
                    .input(beta2_power.value)
                    .input(rate(learning_rate))
                    .input(rate(beta1))
                    .input(rate(beta2))
                    .input(rate(epsilon))
                    .input(gradient)
                    .node()
            }
            Optimizer::Adagrad { learning_rate, initial_accumulator_value } => scope
                .op("ResourceApplyAdagrad")
                .input(variable.handle)
                .input(slot("Adagrad", initial_accumulator_value))
                .input(rate(learning_rate))
                .input(gradient)
                .node(),
            Optimizer::RmsProp { learning_rate, decay, momentum, epsilon } => scope
                .op("ResourceApplyRMSProp")
                .input(variable.handle)
                .input(slot("RMSProp", 1.0))
                .input(slot("RMSProp_1", 0.0))
                .input(rate(learning_rate))
                .input(rate(decay))
                .input(rate(momentum))
                .input(rate(epsilon))
                .input(gradient)
                .node(),
            Optimizer::Ftrl { learning_rate, learning_rate_power, initial_accumulator_value, l1, l2 } => {
                scope
                    .op("ResourceApplyFtrl")
                    .input(variable.handle)
                    .input(slot("Ftrl", initial_accumulator_value))
                    .input(slot("Ftrl_1", 0.0))
                    .input(gradient)
                    .input(rate(learning_rate))
                    .input(rate(l1))
                    .input(rate(l2))
                    .input(rate(learning_rate_power))
                    .node()
            }
        }
    }

    /// What happens once all variables are updated: Adam's powers of its betas move on.
    fn after_updates(
        &self,
        scope: &Scope,
        variables: &Variables,
        gradients: &[(Variable, Output)],
        updates: &[NodeId],
    ) -> Vec<NodeId> {
        let Optimizer::Adam { beta1, beta2, .. } = *self else { return Vec::new() };
        let Some((first, _)) = gradients.first() else { return Vec::new() };
        let (power1, power2) = adam_powers(variables, first, beta1, beta2);
        [(power1, beta1), (power2, beta2)]
            .into_iter()
            .map(|(power, beta)| {
                let after = scope.colocate_with(power.handle.node).control(updates);
                let next = after.mul(power.value, number(&after, power.dtype, beta));
                let assign = after.op("AssignVariableOp").input(power.handle).input(next);
                assign.attr("dtype", power.dtype).node()
            })
            .collect()
    }
}

/// The powers of beta that Adam's first steps are corrected by: one pair for a model, of the first variable's
/// type.
fn adam_powers(variables: &Variables, first: &Variable, beta1: f64, beta2: f64) -> (Variable, Variable) {
    let dtype = if first.dtype == DType::Double { DType::Double } else { DType::Float };
    let power =
        |name: &str, beta: f64| variables.get_untrained(name, dtype, &[], &Initializer::Constant(beta));
    (power("beta1_power", beta1), power("beta2_power", beta2))
}
