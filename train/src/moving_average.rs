//! Exponential moving averages of variables, for evaluation.

use crate::initializer::{Initializer, number};
use crate::sync::UpdateMode;
use crate::variables::{Variable, Variables};
use graph::{DType, NodeId, Scope};

/// The exponential moving average of each trained variable: `average = decay * average + (1 - decay) *
/// variable` after each update. The average is the variable `<name>/ExponentialMovingAverage` on the device
/// of the averaged variable, and starts at that variable's first value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MovingAverage {
    /// The decay, close to 1: 0.999 averages over about a thousand steps.
    pub decay: f64,
    /// True if the decay is limited to `(1 + step) / (10 + step)`, so that the average follows the variable quickly in
    /// early steps.
    pub warms_up: bool,
}

impl MovingAverage {
    /// Returns the name of a variable's average.
    pub fn name_of(variable: &str) -> String {
        format!("{variable}/ExponentialMovingAverage")
    }

    /// Adds the updates of the averages of the trained variables in `changes`, each on its variable's device and after the
    /// node that writes the variable.
    pub(crate) fn changes(
        self,
        scope: &Scope,
        variables: &Variables,
        changes: &[(Variable, NodeId)],
        mode: UpdateMode<'_>,
    ) -> Vec<(Variable, NodeId)> {
        let update = |(variable, change): &(Variable, NodeId)| {
            let update = self.update(&scope.control(&[*change]), variables, variable, mode);
            (variable.clone(), update)
        };
        changes.iter().filter(|(variable, _)| variable.trainable).map(update).collect()
    }

    /// Adds the nodes that update the moving average of `variable`.
    fn update(
        self,
        scope: &Scope,
        variables: &Variables,
        variable: &Variable,
        mode: UpdateMode<'_>,
    ) -> NodeId {
        let average = variables.get_initialized_from(variable, &MovingAverage::name_of(&variable.name));
        let beside = scope.colocate_with(variable.handle.node);
        let dtype = variable.dtype;
        let weight = number(&beside, DType::Double, 1.0 - self.decay);
        let share = if self.warms_up {
            let step = beside.cast(variables.global_step().value, DType::Double);
            let (done, all) =
                (beside.add(step, beside.constant(1.0)), beside.add(step, beside.constant(10.0)));
            beside.maximum(weight, beside.sub(beside.constant(1.0), beside.div(done, all)))
        } else {
            weight
        };
        let now = beside.read_variable(mode.new_value(variable), dtype);
        let before = beside.read_variable(average.handle, dtype);
        let step = beside.mul(beside.sub(before, now), beside.cast(share, dtype));
        let target = mode.whole_target(&beside, &average);
        target.after(&beside).assign_sub_variable(target.handle, step)
    }
}

impl Default for MovingAverage {
    fn default() -> MovingAverage {
        MovingAverage { decay: 0.999, warms_up: false }
    }
}

impl Variables {
    /// Returns a variable on the device of `other` whose first value is the first value of `other`.
    fn get_initialized_from(&self, other: &Variable, name: &str) -> Variable {
        self.beside(other).get_untrained(
            name,
            other.dtype,
            other.shape.dims(),
            &Initializer::Like(other.clone()),
        )
    }
}
