//! A model with its training step.

use crate::coordination::Coordination;
use crate::gradient::{self, Gradient, mean_of};
use crate::optimizer::Optimizer;
use crate::strategy::{Strategy, UpdateOptions};
use crate::sync::Writes;
use crate::variables::{Variable, Variables};
use graph::{DType, NodeId, Output, Result, Scope};

/// A model ready to be trained.
#[derive(Clone, Debug)]
pub struct Training {
    pub variables: Variables,
    /// Gives every variable its first value; run by one replica.
    pub initialize: NodeId,
    /// One training step of this replica. Synchronous ones end when the chief has updated the variables, which a
    /// [`MonitoredSession`](crate::MonitoredSession) of the chief does.
    pub train: NodeId,
    /// The loss of the step, averaged over towers.
    pub loss: Output,
    /// Steps done by all replicas together, `int64`.
    pub global_step: Output,
    /// The same, read when `train` is done, which fetching it runs.
    pub step_done: Output,
    /// Whether each variable has a value, a scalar `bool`, by name.
    pub probes: Vec<(String, Output)>,
    /// What replicas have to do besides to go together.
    pub coordination: Coordination,
}

/// How variables follow gradients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update<'a> {
    pub(crate) optimizer: &'a Optimizer,
    pub(crate) options: UpdateOptions,
}

impl Update<'_> {
    /// Adds one update of the variables, of their averages, and of the global step, in this order; the node is done
    /// when all are.
    pub(crate) fn apply(
        &self,
        scope: &Scope,
        variables: &Variables,
        gradients: &[(Variable, Gradient)],
    ) -> NodeId {
        let changes = self.changes(scope, variables, gradients, Writes::InPlace);
        let last = scope.group(&changes.into_iter().map(|(_, change)| change).collect::<Vec<_>>());
        let step = variables.global_step();
        let counted = scope.colocate_with(step.handle.node).control(&[last]);
        let counted = counted.assign_add_variable(step.handle, counted.constant(1i64));
        scope.group(&[last, counted])
    }

    /// Adds the changes of variables and of their averages, or what prepares them aside; each with the variable that it
    /// is beside.
    pub(crate) fn changes(
        &self,
        scope: &Scope,
        variables: &Variables,
        gradients: &[(Variable, Gradient)],
        writes: Writes<'_>,
    ) -> Vec<(Variable, NodeId)> {
        let mut changes = self.optimizer.changes(scope, variables, gradients, writes);
        if let Some(average) = self.options.moving_average {
            changes.extend(average.changes(scope, variables, &changes, writes));
        }
        changes
    }
}

pub(crate) fn build(
    strategy: &Strategy,
    scope: &Scope,
    variables: &Variables,
    update: &Update<'_>,
    towers: &[(Scope, Vec<Output>)],
    loss: impl Fn(&Scope, &Variables, &[Output]) -> Output,
) -> Result<Training> {
    let mut losses = Vec::with_capacity(towers.len());
    let mut of_towers = Vec::with_capacity(towers.len());
    for (tower, share) in towers {
        let loss = loss(tower, variables, share);
        let gradients = gradient::of_loss(tower, variables, loss)?;
        of_towers.push(match update.options.clip {
            Some(clip) => clip.apply(tower, gradients),
            None => gradients,
        });
        losses.push(loss);
    }
    let scopes: Vec<Scope> = towers.iter().map(|(tower, _)| tower.clone()).collect();
    let gradients = gradient::mean_over_towers(scope, &scopes, &of_towers, strategy.averaging());
    let (worker, sync) = strategy.replica();
    let (train, coordination) = Coordination::build(scope, variables, update, &gradients, worker, sync)?;
    let step = variables.global_step();
    let done = scope.colocate_with(step.handle.node).control(&[train]);
    let training = Training {
        initialize: variables.initializer(),
        train,
        loss: mean_of(scope, &losses),
        global_step: step.value,
        step_done: done.read_variable(step.handle, DType::Int64),
        coordination,
        probes: variables.are_initialized(),
        variables: variables.clone(),
    };
    scope.finish().map(|_| training)
}
