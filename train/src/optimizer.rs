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
        let powers = self.powers(variables, gradients);
        let mut updates = Vec::with_capacity(gradients.len() + powers.len());
        for (variable, gradient) in gradients {
            let beside = scope.colocate_with(variable.handle.node);
            updates.push(self.update(&beside, variables, variable, &powers, *gradient));
        }
        let moved: Vec<NodeId> = powers
            .iter()
            .map(|(power, beta)| {
                let after = scope.colocate_with(power.handle.node).control(&updates);
                let next = after.mul(power.value, number(&after, power.dtype, *beta));
                let assign = after.op("AssignVariableOp").input(power.handle).input(next);
                assign.attr("dtype", power.dtype).node()
            })
            .collect();
        updates.extend(moved);
        scope.group(&updates)
    }

    /// One variable's update op: the variable, its slots, the rates, the gradient, in the op's order.
    fn update(
        &self,
        scope: &Scope,
        variables: &Variables,
        variable: &Variable,
        powers: &[(Variable, f64)],
        gradient: Output,
    ) -> NodeId {
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
                let call = scope
                    .op("ResourceApplyAdam")
                    .input(variable.handle)
                    .input(slot("Adam", 0.0))
                    .input(slot("Adam_1", 0.0));
                powers
                    .iter()
                    .fold(call, |call, (power, _)| call.input(scope.cast(power.value, variable.dtype)))
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

    /// The powers of Adam's betas that correct its first steps, with their betas: one pair for a model, beside
    /// its first variable. Other optimizers have none.
    fn powers(&self, variables: &Variables, gradients: &[(Variable, Output)]) -> Vec<(Variable, f64)> {
        let (Optimizer::Adam { beta1, beta2, .. }, Some((first, _))) = (self, gradients.first()) else {
            return Vec::new();
        };
        let dtype = if first.dtype == DType::Double { DType::Double } else { DType::Float };
        let power = |name: &str, beta: f64| {
            let first_value = Initializer::Constant(beta);
            (variables.beside(first).get_untrained(name, dtype, &[], &first_value), beta)
        };
        vec![power("beta1_power", *beta1), power("beta2_power", *beta2)]
    }
}
