//! Optimizers: the update op for each gradient, and the slot variables that it needs.

use crate::gradient::{Gradient, deduplicated};
use crate::initializer::{Initializer, number};
use crate::learning_rate::LearningRate;
use crate::sync::{UpdateMode, WriteTarget};
use crate::variables::{Variable, Variables};
use graph::{DType, NodeId, Output, Scope};

/// An optimizer with its hyperparameters, which have TensorFlow's names and defaults. A sparse gradient changes only
/// its own rows, except with Adam, which changes all rows because the moments of every row decay.
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
    /// Returns plain gradient descent.
    pub fn gradient_descent(learning_rate: impl Into<LearningRate>) -> Optimizer {
        Optimizer::GradientDescent { learning_rate: learning_rate.into() }
    }

    /// Returns gradient descent with momentum, without Nesterov's variant.
    pub fn momentum(learning_rate: impl Into<LearningRate>, momentum: f64) -> Optimizer {
        Optimizer::Momentum { learning_rate: learning_rate.into(), momentum, use_nesterov: false }
    }

    /// Returns Adam with `beta1` 0.9, `beta2` 0.999 and `epsilon` 1e-8.
    pub fn adam(learning_rate: impl Into<LearningRate>) -> Optimizer {
        Optimizer::Adam { learning_rate: learning_rate.into(), beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }

    /// Returns Adagrad with an initial accumulator value of 0.1.
    pub fn adagrad(learning_rate: impl Into<LearningRate>) -> Optimizer {
        Optimizer::Adagrad { learning_rate: learning_rate.into(), initial_accumulator_value: 0.1 }
    }

    /// Returns RMSProp with `decay` 0.9, no momentum, and `epsilon` 1e-10.
    pub fn rms_prop(learning_rate: impl Into<LearningRate>) -> Optimizer {
        Optimizer::RmsProp { learning_rate: learning_rate.into(), decay: 0.9, momentum: 0.0, epsilon: 1e-10 }
    }

    /// Returns FTRL with `learning_rate_power` -0.5, an initial accumulator value of 0.1, and no
    /// regularization.
    pub fn ftrl(learning_rate: impl Into<LearningRate>) -> Optimizer {
        Optimizer::Ftrl {
            learning_rate: learning_rate.into(),
            learning_rate_power: -0.5,
            initial_accumulator_value: 0.1,
            l1: 0.0,
            l2: 0.0,
        }
    }

    /// Returns the optimizer's learning rate: a constant, or a schedule over the global step.
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

    /// Adds the nodes that update each variable in `gradients` by its gradient, on the variable's device. Returns a
    /// node that runs all updates.
    pub fn apply(&self, scope: &Scope, variables: &Variables, gradients: &[(Variable, Gradient)]) -> NodeId {
        let changes = self.changes(scope, variables, gradients, UpdateMode::InPlace);
        scope.group(&changes.iter().map(|(_, change)| *change).collect::<Vec<_>>())
    }

    /// Adds the nodes that update the variables, in place or staged according to `mode`. Returns each write with the
    /// variable on whose device it runs.
    pub(crate) fn changes(
        &self,
        scope: &Scope,
        variables: &Variables,
        gradients: &[(Variable, Gradient)],
        mode: UpdateMode<'_>,
    ) -> Vec<(Variable, NodeId)> {
        let mut changes = self.changes_of(scope, variables, gradients, mode);
        for (power, beta) in self.powers(variables) {
            let beside = scope.colocate_with(power.handle.node);
            let next = beside.mul(power.value, number(&beside, power.dtype, beta));
            let target = mode.whole_target(&beside, &power);
            changes.push((power, target.after(&beside).assign_variable(target.handle, next)));
        }
        changes
    }

    /// Adds the nodes that update the variables like [`Optimizer::changes`], without those that update Adam's powers.
    pub(crate) fn changes_of(
        &self,
        scope: &Scope,
        variables: &Variables,
        gradients: &[(Variable, Gradient)],
        mode: UpdateMode<'_>,
    ) -> Vec<(Variable, NodeId)> {
        let powers = self.powers(variables);
        let rate = self.learning_rate();
        let scheduled = rate.is_scheduled().then(|| rate.at(scope, variables.global_step().value));
        let mut changes = Vec::with_capacity(gradients.len() + powers.len());
        for (variable, gradient) in gradients {
            let beside = scope.colocate_with(variable.handle.node);
            let rate = match (scheduled, rate) {
                (Some(rate), _) => beside.cast(rate, variable.dtype),
                (None, LearningRate::Constant(rate)) => number(&beside, variable.dtype, *rate),
                (None, other) => {
                    beside.cast(other.at(&beside, variables.global_step().value), variable.dtype)
                }
            };
            let update = VariableUpdate { scope: &beside, variables, variable, powers: &powers, rate, mode };
            changes.push((variable.clone(), update.add(self, *gradient)));
        }
        changes
    }

    /// Returns Adam's variables `beta1_power` and `beta2_power`, each with the beta by which a step multiplies it: one
    /// pair for a model, on the device of the first trained variable that is no part of a table. Optimizers other than
    /// Adam have none.
    fn powers(&self, variables: &Variables) -> Vec<(Variable, f64)> {
        let trained = variables.trainable();
        let (Optimizer::Adam { beta1, beta2, .. }, Some(first)) = (self, trained.first()) else {
            return Vec::new();
        };
        let whole = trained.iter().find(|variable| variable.slice.is_none());
        let beside = whole.map_or_else(|| variables.clone(), |whole| variables.beside(whole));
        let dtype = if first.dtype == DType::Double { DType::Double } else { DType::Float };
        let power = |name: &str, beta: f64| {
            (beside.get_untrained(name, dtype, &[], &Initializer::Constant(beta)), beta)
        };
        vec![power("beta1_power", *beta1), power("beta2_power", *beta2)]
    }
}

/// A builder of the nodes that update one variable, on the variable's device.
struct VariableUpdate<'a> {
    scope: &'a Scope,
    variables: &'a Variables,
    variable: &'a Variable,
    powers: &'a [(Variable, f64)],
    /// The learning rate, in the variable's type.
    rate: Output,
    mode: UpdateMode<'a>,
}

impl VariableUpdate<'_> {
    /// Adds the nodes that update the variable by `optimizer`.
    fn add(&self, optimizer: &Optimizer, gradient: Gradient) -> NodeId {
        match *optimizer {
            Optimizer::GradientDescent { .. } => self.descend(gradient),
            Optimizer::Momentum { momentum, use_nesterov, .. } => {
                let slots = [self.slot("Momentum", 0.0)];
                let flags = [("use_nesterov", use_nesterov)];
                self.op("Momentum", gradient, &slots, &[self.rate], &[self.number(momentum)], &flags)
            }
            Optimizer::Adam { beta1, beta2, epsilon, .. } => self.adam(gradient, beta1, beta2, epsilon),
            Optimizer::Adagrad { initial_accumulator_value, .. } => {
                let slots = [self.slot("Adagrad", initial_accumulator_value)];
                self.op("Adagrad", gradient, &slots, &[self.rate], &[], &[])
            }
            Optimizer::RmsProp { decay, momentum, epsilon, .. } => {
                let slots = [self.slot("RMSProp", 1.0), self.slot("RMSProp_1", 0.0)];
                let rates = [self.rate, self.number(decay), self.number(momentum), self.number(epsilon)];
                self.op("RMSProp", gradient, &slots, &rates, &[], &[])
            }
            Optimizer::Ftrl { learning_rate_power, initial_accumulator_value, l1, l2, .. } => {
                let slots = [self.slot("Ftrl", initial_accumulator_value), self.slot("Ftrl_1", 0.0)];
                let rates = [self.rate, self.number(l1), self.number(l2), self.number(learning_rate_power)];
                self.op("Ftrl", gradient, &slots, &[], &rates, &[])
            }
        }
    }

    /// Adds the nodes that update the variable by gradient descent.
    fn descend(&self, gradient: Gradient) -> NodeId {
        let scope = self.scope;
        match gradient {
            Gradient::Dense(gradient) => {
                let target = self.mode.whole_target(scope, self.variable);
                target.after(scope).resource_apply_gradient_descent(target.handle, self.rate, gradient)
            }
            Gradient::Sparse { indices, values } => {
                let step = scope.mul(values, self.rate);
                let (target, indices_in_target) = self.target_of_rows(indices);
                target.after(scope).resource_scatter_sub(target.handle, indices_in_target, step)
            }
        }
    }

    /// Returns the variable to which a gradient's rows `indices` are written (the model's variable or its staged
    /// value), and the indices of these rows in that variable. A row may occur more than once.
    fn target_of_rows(&self, indices: Output) -> (WriteTarget, Output) {
        if !self.mode.can_stage_rows() {
            return (self.mode.whole_target(self.scope, self.variable), indices);
        }
        let [rows, position] = self.scope.unique(indices);
        let (targets, indices_in_target) = self.mode.row_targets(self.scope, self.variable, &[], rows);
        (targets[0], self.scope.gather(indices_in_target, position, 0))
    }

    /// Adds the dense or sparse form of an update op. The op's inputs are the handles of the variable and of its slots,
    /// then `before`, the gradient, and `after`.
    fn op(
        &self,
        name: &str,
        gradient: Gradient,
        slots: &[Variable],
        before: &[Output],
        after: &[Output],
        flags: &[(&str, bool)],
    ) -> NodeId {
        let (form, targets, gradient) = match gradient {
            Gradient::Dense(gradient) => {
                let all = std::iter::once(self.variable).chain(slots);
                let targets = all.map(|variable| self.mode.whole_target(self.scope, variable)).collect();
                ("ResourceApply", targets, vec![gradient])
            }
            Gradient::Sparse { indices, values } => {
                let (rows, values) = deduplicated(self.scope, indices, values);
                let (targets, indices_in_target) =
                    self.mode.row_targets(self.scope, self.variable, slots, rows);
                ("ResourceSparseApply", targets, vec![values, indices_in_target])
            }
        };
        let scope = targets.iter().fold(self.scope.clone(), |scope, target| target.after(&scope));
        let op = format!("{form}{name}");
        let handles = targets.iter().map(|target| target.handle);
        let inputs = handles.chain([before, &gradient, after].concat());
        let call = inputs.fold(scope.op(&op), |call, input| call.input(input));
        flags.iter().fold(call, |call, (flag, value)| call.attr(flag, *value)).node()
    }

    /// Adds the nodes that update the variable by Adam.
    fn adam(&self, gradient: Gradient, beta1: f64, beta2: f64, epsilon: f64) -> NodeId {
        let (m, v) = (self.slot("Adam", 0.0), self.slot("Adam_1", 0.0));
        let powers: Vec<Output> =
            self.powers.iter().map(|(power, _)| self.scope.cast(power.value, self.variable.dtype)).collect();
        let (indices, values) = match gradient {
            Gradient::Dense(_) => {
                let rates = [self.rate, self.number(beta1), self.number(beta2), self.number(epsilon)];
                let before = [&powers[..], &rates].concat();
                return self.op("Adam", gradient, &[m, v], &before, &[], &[]);
            }
            Gradient::Sparse { indices, values } => deduplicated(self.scope, indices, values),
        };
        // No single op applies a sparse gradient by Adam: the moments of all rows decay, and the moments of the
        // gradient's rows increase.
        let scope = self.scope;
        let one = || self.number(1.0);
        let correction = match powers[..] {
            [beta1, beta2] => scope.div(scope.sqrt(scope.sub(one(), beta2)), scope.sub(one(), beta1)),
            _ => one(),
        };
        let moment = |slot: &Variable, beta: f64, increase: Output| {
            let decayed = scope.mul(slot.value, self.number(beta));
            let target = self.mode.whole_target(scope, slot);
            let decayed = target.after(scope).assign_variable(target.handle, decayed);
            let increase = scope.mul(increase, self.number(1.0 - beta));
            let increased = scope.control(&[decayed]).resource_scatter_add(target.handle, indices, increase);
            scope.control(&[increased]).read_variable(target.handle, slot.dtype)
        };
        let m = moment(&m, beta1, values);
        let v = moment(&v, beta2, scope.square(values));
        let step = scope.div(
            scope.mul(scope.mul(self.rate, correction), m),
            scope.add(scope.sqrt(v), self.number(epsilon)),
        );
        let target = self.mode.whole_target(scope, self.variable);
        target.after(scope).assign_sub_variable(target.handle, step)
    }

    /// Returns a slot of the variable, initialised to `first`.
    fn slot(&self, name: &str, first: f64) -> Variable {
        self.variables.slot(self.variable, name, &Initializer::Constant(first))
    }

    /// Adds a scalar constant of the variable's type.
    fn number(&self, value: f64) -> Output {
        number(self.scope, self.variable.dtype, value)
    }
}
