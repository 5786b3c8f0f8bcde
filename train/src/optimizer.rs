//! Optimizers: which update op a gradient goes into, and which slots it keeps.

use crate::gradient::{Gradient, deduplicated};
use crate::initializer::{Initializer, number};
use crate::learning_rate::LearningRate;
use crate::variables::{Variable, Variables};
use graph::{DType, NodeId, Output, Scope};

/// An optimizer with its rates. Names and defaults of the rates are TensorFlow's. Gradients of rows change those
/// rows alone, except Adam's, whose moments decay everywhere.
#[derive(Clone, Debug, PartialEq)]
pub enum Optimizer {
    GradientDescent {
        learning_rate: LearningRate,
    },
    Momentum {
        learning_rate: LearningRate,
        momentum: f64,
        use_nesterov: bool,
    },
    Adam {
        learning_rate: LearningRate,
        beta1: f64,
        beta2: f64,
        epsilon: f64,
    },
    Adagrad {
        learning_rate: LearningRate,
        initial_accumulator_value: f64,
    },
    RmsProp {
        learning_rate: LearningRate,
        decay: f64,
        momentum: f64,
        epsilon: f64,
    },
    Ftrl {
        learning_rate: LearningRate,
        learning_rate_power: f64,
        initial_accumulator_value: f64,
        l1: f64,
        l2: f64,
    },
}

impl Optimizer {
    pub fn gradient_descent(learning_rate: impl Into<LearningRate>) -> Optimizer {
        Optimizer::GradientDescent { learning_rate: learning_rate.into() }
    }

    pub fn momentum(learning_rate: impl Into<LearningRate>, momentum: f64) -> Optimizer {
        Optimizer::Momentum { learning_rate: learning_rate.into(), momentum, use_nesterov: false }
    }

    pub fn adam(learning_rate: impl Into<LearningRate>) -> Optimizer {
        Optimizer::Adam { learning_rate: learning_rate.into(), beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }

    pub fn adagrad(learning_rate: impl Into<LearningRate>) -> Optimizer {
        Optimizer::Adagrad { learning_rate: learning_rate.into(), initial_accumulator_value: 0.1 }
    }

    pub fn rms_prop(learning_rate: impl Into<LearningRate>) -> Optimizer {
        Optimizer::RmsProp { learning_rate: learning_rate.into(), decay: 0.9, momentum: 0.0, epsilon: 1e-10 }
    }

    pub fn ftrl(learning_rate: impl Into<LearningRate>) -> Optimizer {
        Optimizer::Ftrl {
            learning_rate: learning_rate.into(),
            learning_rate_power: -0.5,
            initial_accumulator_value: 0.1,
            l1: 0.0,
            l2: 0.0,
        }
    }

    pub fn learning_rate(&self) -> &LearningRate {
        match self {
            Optimizer::GradientDescent { learning_rate }
            | Optimizer::Momentum { learning_rate, .. }
            | Optimizer::Adam { learning_rate, .. }
            | Optimizer::Adagrad { learning_rate, .. }
            | Optimizer::RmsProp { learning_rate, .. }
            | Optimizer::Ftrl { learning_rate, .. } => learning_rate,
        }
    }

    /// Adds the updates of these variables by these gradients; the node runs them all, beside the variables.
    pub fn apply(&self, scope: &Scope, variables: &Variables, gradients: &[(Variable, Gradient)]) -> NodeId {
        let powers = self.powers(variables, gradients);
        let rate = self.learning_rate();
        let scheduled = rate.is_scheduled().then(|| rate.at(scope, variables.global_step().value));
        let mut updates = Vec::with_capacity(gradients.len() + powers.len());
        for (variable, gradient) in gradients {
            let beside = scope.colocate_with(variable.handle.node);
            let rate = match (scheduled, rate) {
                (Some(rate), _) => beside.cast(rate, variable.dtype),
                (None, LearningRate::Constant(rate)) => number(&beside, variable.dtype, *rate),
                (None, other) => {
                    beside.cast(other.at(&beside, variables.global_step().value), variable.dtype)
                }
            };
            let update = Update { scope: &beside, variables, variable, powers: &powers, rate };
            updates.push(update.add(self, *gradient));
        }
        let moved: Vec<NodeId> = powers
            .iter()
            .map(|(power, beta)| {
                let after = scope.colocate_with(power.handle.node).control(&updates);
                let next = after.mul(power.value, number(&after, power.dtype, *beta));
                after.assign_variable(power.handle, next)
            })
            .collect();
        updates.extend(moved);
        scope.group(&updates)
    }

    /// The powers of Adam's betas that correct its first steps, with their betas: one pair for a model, beside
    /// its first variable. Other optimizers have none.
    fn powers(&self, variables: &Variables, gradients: &[(Variable, Gradient)]) -> Vec<(Variable, f64)> {
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

/// One variable's update, beside it.
struct Update<'a> {
    scope: &'a Scope,
    variables: &'a Variables,
    variable: &'a Variable,
    powers: &'a [(Variable, f64)],
    /// The learning rate, in the variable's type.
    rate: Output,
}

impl Update<'_> {
    fn add(&self, optimizer: &Optimizer, gradient: Gradient) -> NodeId {
        match *optimizer {
            Optimizer::GradientDescent { .. } => match gradient {
                Gradient::Dense(gradient) => {
                    self.scope.resource_apply_gradient_descent(self.variable.handle, self.rate, gradient)
                }
                Gradient::Sparse { indices, values } => {
                    let step = self.scope.mul(values, self.rate);
                    self.scope.resource_scatter_sub(self.variable.handle, indices, step)
                }
            },
            Optimizer::Momentum { momentum, use_nesterov, .. } => {
                let before = [self.slot("Momentum", 0.0).handle, self.rate];
                let flags = [("use_nesterov", use_nesterov)];
                self.op("Momentum", gradient, &before, &[self.number(momentum)], &flags)
            }
            Optimizer::Adam { beta1, beta2, epsilon, .. } => self.adam(gradient, beta1, beta2, epsilon),
            Optimizer::Adagrad { initial_accumulator_value, .. } => {
                let before = [self.slot("Adagrad", initial_accumulator_value).handle, self.rate];
                self.op("Adagrad", gradient, &before, &[], &[])
            }
            Optimizer::RmsProp { decay, momentum, epsilon, .. } => {
                let slots = [self.slot("RMSProp", 1.0).handle, self.slot("RMSProp_1", 0.0).handle];
                let rates = [self.rate, self.number(decay), self.number(momentum), self.number(epsilon)];
                self.op("RMSProp", gradient, &[&slots[..], &rates].concat(), &[], &[])
            }
            Optimizer::Ftrl { learning_rate_power, initial_accumulator_value, l1, l2, .. } => {
                let slots =
                    [self.slot("Ftrl", initial_accumulator_value).handle, self.slot("Ftrl_1", 0.0).handle];
                let rates = [self.rate, self.number(l1), self.number(l2), self.number(learning_rate_power)];
                self.op("Ftrl", gradient, &slots, &rates, &[])
            }
        }
    }

    /// The op's dense or sparse form: the variable, what comes before the gradient, the gradient, the rest.
    fn op(
        &self,
        name: &str,
        gradient: Gradient,
        before: &[Output],
        after: &[Output],
        flags: &[(&str, bool)],
    ) -> NodeId {
        let (form, gradient) = match gradient {
            Gradient::Dense(gradient) => ("ResourceApply", vec![gradient]),
            Gradient::Sparse { indices, values } => {
                let (indices, values) = deduplicated(self.scope, indices, values);
                ("ResourceSparseApply", vec![values, indices])
            }
        };
        let op = format!("{form}{name}");
        let inputs = before.iter().chain(&gradient).chain(after);
        let call = self.scope.op(&op).input(self.variable.handle);
        let call = inputs.fold(call, |call, input| call.input(*input));
        flags.iter().fold(call, |call, (flag, value)| call.attr(flag, *value)).node()
    }

    fn adam(&self, gradient: Gradient, beta1: f64, beta2: f64, epsilon: f64) -> NodeId {
        let (m, v) = (self.slot("Adam", 0.0), self.slot("Adam_1", 0.0));
        let powers: Vec<Output> =
            self.powers.iter().map(|(power, _)| self.scope.cast(power.value, self.variable.dtype)).collect();
        let (indices, values) = match gradient {
            Gradient::Dense(_) => {
                let rates = [self.rate, self.number(beta1), self.number(beta2), self.number(epsilon)];
                let before = [&[m.handle, v.handle][..], &powers, &rates].concat();
                return self.op("Adam", gradient, &before, &[], &[]);
            }
            Gradient::Sparse { indices, values } => deduplicated(self.scope, indices, values),
        };
        // As the op does it, for moments that decay everywhere and gain in some rows.
        let scope = self.scope;
        let one = || self.number(1.0);
        let correction = match powers[..] {
            [beta1, beta2] => scope.div(scope.sqrt(scope.sub(one(), beta2)), scope.sub(one(), beta1)),
            _ => one(),
        };
        let moment = |slot: &Variable, beta: f64, gain: Output| {
            let decayed = scope.mul(slot.value, self.number(beta));
            let decayed = scope.assign_variable(slot.handle, decayed);
            let gain = scope.mul(gain, self.number(1.0 - beta));
            let gained = scope.control(&[decayed]).resource_scatter_add(slot.handle, indices, gain);
            scope.control(&[gained]).read_variable(slot.handle, slot.dtype)
        };
        let m = moment(&m, beta1, values);
        let v = moment(&v, beta2, scope.square(values));
        let step = scope.div(
            scope.mul(scope.mul(self.rate, correction), m),
            scope.add(scope.sqrt(v), self.number(epsilon)),
        );
        scope.assign_sub_variable(self.variable.handle, step)
    }

    fn slot(&self, name: &str, first: f64) -> Variable {
        self.variables.slot(self.variable, name, &Initializer::Constant(first))
    }

    fn number(&self, value: f64) -> Output {
        number(self.scope, self.variable.dtype, value)
    }
}
