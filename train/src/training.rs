//! The training step of a model: the gradients of its loss, and the updates of its variables.

use crate::coordination::Coordination;
use crate::gradient::{self, Gradient, mean_of};
use crate::optimizer::Optimizer;
use crate::strategy::{Strategy, UpdateOptions};
use crate::sync::UpdateMode;
use crate::variables::{Variable, Variables};
use graph::{DType, NodeId, Output, Result, Scope};

/// A model's variables, and the nodes that train them.
#[derive(Clone, Debug)]
pub struct Training {
    pub variables: Variables,
    /// Initialises every variable; only one replica runs this.
    pub initialize: NodeId,
    /// One training step of this replica. A synchronous step ends when the chief has updated the variables,
    /// which happens only while a [`MonitoredSession`](crate::MonitoredSession) of the chief runs.
    pub train: NodeId,
    /// The loss of the step, the mean over the towers. With between-graph replication each worker has its own loss; it
    /// is 0 for a worker without a batch, under [`Uneven::Join`](crate::Uneven::Join).
    pub loss: Output,
    /// The number of steps done by all replicas together, `int64`.
    pub global_step: Output,
    /// The global step read after `train`; a fetch of this output also runs `train`.
    pub step_done: Output,
    /// The name of each variable, with a scalar `bool` that is true if the variable has a value.
    pub probes: Vec<(String, Output)>,
    /// The nodes that coordinate this replica with the other replicas.
    pub coordination: Coordination,
}

/// The rule that updates variables from gradients: an optimizer with clipping and moving averages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpdateRule<'a> {
    pub(crate) optimizer: &'a Optimizer,
    pub(crate) options: UpdateOptions,
}

impl UpdateRule<'_> {
    /// Adds one update of the variables, of their moving averages, and of the global step, in this order. Returns a
    /// node that ends when all updates are done.
    pub(crate) fn apply(
        &self,
        scope: &Scope,
        variables: &Variables,
        gradients: &[(Variable, Gradient)],
    ) -> NodeId {
        let changes = self.changes(scope, variables, gradients, UpdateMode::InPlace);
        let last = scope.group(&changes.into_iter().map(|(_, change)| change).collect::<Vec<_>>());
        let step = variables.global_step();
        let counted = scope.colocate_with(step.handle.node).control(&[last]);
        let counted = counted.assign_add_variable(step.handle, counted.constant(1i64));
        scope.group(&[last, counted])
    }

    /// Adds the nodes that write the variables and their moving averages, in place or staged according to `mode`.
    /// Returns each write with the variable on whose device it runs.
    pub(crate) fn changes(
        &self,
        scope: &Scope,
        variables: &Variables,
        gradients: &[(Variable, Gradient)],
        mode: UpdateMode<'_>,
    ) -> Vec<(Variable, NodeId)> {
        let changes = self.optimizer.changes(scope, variables, gradients, mode);
        self.with_averages(scope, variables, changes, mode)
    }

    /// Adds the update of one variable and of its moving average, without that of variables which all updates share.
    /// Returns a node that ends when both are done.
    pub(crate) fn apply_one(
        &self,
        scope: &Scope,
        variables: &Variables,
        gradient: &(Variable, Gradient),
    ) -> NodeId {
        let (gradients, mode) = (std::slice::from_ref(gradient), UpdateMode::InPlace);
        let changes = self.optimizer.changes_of(scope, variables, gradients, mode);
        let changes = self.with_averages(scope, variables, changes, mode);
        scope.group(&changes.into_iter().map(|(_, change)| change).collect::<Vec<_>>())
    }

    /// Adds the updates of the moving averages of the variables in `changes`, and returns them after `changes`.
    fn with_averages(
        &self,
        scope: &Scope,
        variables: &Variables,
        mut changes: Vec<(Variable, NodeId)>,
        mode: UpdateMode<'_>,
    ) -> Vec<(Variable, NodeId)> {
        if let Some(average) = self.options.moving_average {
            changes.extend(average.changes(scope, variables, &changes, mode));
        }
        changes
    }
}

/// The copies of the model in a graph.
#[derive(Debug)]
pub(crate) struct Towers {
    /// The scope and the inputs of each copy.
    pub(crate) copies: Vec<(Scope, Vec<Output>)>,
    /// False in steps for which this replica has no batch: a scalar `bool`; `None` if a step always has a batch.
    pub(crate) has_batch: Option<Output>,
}

/// Builds the training step of a strategy, whose model has the copies `towers`.
pub(crate) fn build(
    strategy: &Strategy,
    scope: &Scope,
    variables: &Variables,
    rule: &UpdateRule<'_>,
    towers: &Towers,
    loss: impl Fn(&Scope, &Variables, &[Output]) -> Output,
) -> Result<Training> {
    let Towers { copies, has_batch } = towers;
    let mut losses = Vec::with_capacity(copies.len());
    let mut tower_gradients = Vec::with_capacity(copies.len());
    for (tower, share) in copies {
        let loss = loss(tower, variables, share);
        let gradients = gradient::of_loss(tower, variables, loss)?;
        tower_gradients.push(match rule.options.clip {
            Some(clip) => clip.apply(tower, gradients),
            None => gradients,
        });
        losses.push(loss);
    }
    let scopes: Vec<Scope> = copies.iter().map(|(tower, _)| tower.clone()).collect();
    let gradients = gradient::mean_over_towers(scope, &scopes, &tower_gradients, strategy.averaging());
    let (train, coordination) = match strategy.all_reduce() {
        Some(job) => {
            let (train, replica) = job.build(scope, variables, rule, &gradients, *has_batch)?;
            (train, Coordination::AllReduce(Box::new(replica)))
        }
        None => {
            let (worker, sync) = strategy.worker_and_sync();
            Coordination::build(scope, variables, rule, &gradients, worker, sync)?
        }
    };
    let step = variables.global_step();
    let done = scope.colocate_with(step.handle.node).control(&[train]);
    let loss = mean_of(scope, &losses);
    let training = Training {
        initialize: variables.initializer(),
        train,
        loss: has_batch.map_or(loss, |has_batch| scope.select(has_batch, loss, scope.zeros_like(loss))),
        global_step: step.value,
        step_done: done.read_variable(step.handle, DType::Int64),
        coordination,
        probes: variables.are_initialized(),
        variables: variables.clone(),
    };
    scope.finish().map(|_| training)
}
