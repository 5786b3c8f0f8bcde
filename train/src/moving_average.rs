//! Exponential moving averages of variables, for evaluation.

use crate::initializer::{Initializer, number};
use crate::sync::Writes;
use crate::variables::{Variable, Variables};
use graph::{DType, NodeId, Scope};

/// Keeps `average = decay * average + (1 - decay) * variable` after each update, in a variable
/// `<name>/ExponentialMovingAverage` beside the variable, which starts at the variable's first value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MovingAverage {
    /// Close to 1: 0.999 looks back over some thousand steps.
    pub decay: f64,
    /// Whether early steps count more: the decay is then `(1 + step) / (10 + step)` at most.
    pub warms_up: bool,
}

impl MovingAverage {
    /// The name of a variable's average.
    pub fn name_of(variable: &str) -> String {
        format!("{variable}/ExponentialMovingAverage")
    }

    /// Updates the averages of all trained variables, each after these changes of its variable and beside it.
    pub(crate) fn changes(
        self,
        scope: &Scope,
        variables: &Variables,
        changes: &[(Variable, NodeId)],
        writes: Writes<'_>,
    ) -> Vec<(Variable, NodeId)> {
        let update = |variable: Variable| {
            let own = changes.iter().filter(|(changed, _)| changed.name == variable.name);
            let after = scope.control(&own.map(|(_, change)| *change).collect::<Vec<_>>());
            let update = self.update(&after, variables, &variable, writes);
            (variable, update)
        };
        variables.trainable().into_iter().map(update).collect()
    }

    fn update(self, scope: &Scope, variables: &Variables, variable: &Variable, writes: Writes<'_>) -> NodeId {
        let average = variables.starting_as(variable, &MovingAverage::name_of(&variable.name));
        let beside = scope.colocate_with(variable.handle.node);
        let dtype = variable.dtype;
        let keeps = number(&beside, DType::Double, 1.0 - self.decay);
        let share = if self.warms_up {
            let step = beside.cast(variables.global_step().value, DType::Double);
            let (done, all) =
                (beside.add(step, beside.constant(1.0)), beside.add(step, beside.constant(10.0)));
            beside.maximum(keeps, beside.sub(beside.constant(1.0), beside.div(done, all)))
        } else {
            keeps
        };
        let now = beside.read_variable(writes.changed(variable), dtype);
        let before = beside.read_variable(average.handle, dtype);
        let step = beside.mul(beside.sub(before, now), beside.cast(share, dtype));
        let target = writes.whole(&beside, &average);
        target.after(&beside).assign_sub_variable(target.handle, step)
    }
}

impl Default for MovingAverage {
    fn default() -> MovingAverage {
        MovingAverage { decay: 0.999, warms_up: false }
    }
}

impl Variables {
    /// A variable of this name beside another, whose first value is the other's.
    fn starting_as(&self, other: &Variable, name: &str) -> Variable {
        self.beside(other).get_untrained(
            name,
            other.dtype,
            other.shape.dims(),
            &Initializer::Like(other.clone()),
        )
    }
}
