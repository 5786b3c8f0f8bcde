//! What replicas do besides their steps to go together: nothing, wait for each other at each step, or keep within
//! reach.

use crate::gradient::Gradient;
use crate::staleness::BoundedStaleness;
use crate::strategy::SyncMode;
use crate::sync::SyncReplicas;
use crate::training::Update;
use crate::variables::{Variable, Variables};
use graph::{Error, NodeId, Result, Scope};

/// The graph's part of it; a [`MonitoredSession`](crate::MonitoredSession) does the rest.
#[derive(Clone, Debug)]
pub enum Coordination {
    /// Nobody waits for anybody.
    Free,
    Sync(Box<SyncReplicas>),
    BoundedStaleness(BoundedStaleness),
}

impl Coordination {
    /// Adds a replica's training step with these gradients.
    pub(crate) fn build(
        scope: &Scope,
        variables: &Variables,
        update: &Update<'_>,
        gradients: &[(Variable, Gradient)],
        worker: u32,
        sync: SyncMode,
    ) -> Result<(NodeId, Coordination)> {
        let of_workers = |worker: u32, workers: u32| {
            if worker < workers {
                return Ok((worker as usize, workers as usize));
            }
            Err(Error::invalid(format!(
                "worker {worker} is none of the {workers} workers that wait for each other"
            )))
        };
        match sync {
            SyncMode::Async => Ok((update.apply(scope, variables, gradients), Coordination::Free)),
            SyncMode::Sync { replicas_to_aggregate: 0, .. } => {
                Err(Error::invalid("SyncMode::Sync aggregates the gradients of no replicas"))
            }
            SyncMode::Sync { replicas_to_aggregate, backup, aggregation } => {
                let (worker, workers) = of_workers(worker, replicas_to_aggregate.saturating_add(backup))?;
                let required = replicas_to_aggregate as usize;
                let build = crate::sync::Build { scope, variables, update, worker, workers, required };
                let (train, sync) = build.replicas(gradients, aggregation);
                Ok((train, Coordination::Sync(Box::new(sync))))
            }
            SyncMode::BoundedStaleness { steps, workers } => {
                let (worker, workers) = of_workers(worker, workers)?;
                let updated = update.apply(scope, variables, gradients);
                let (train, bounded) =
                    BoundedStaleness::build(scope, variables, updated, worker, workers, i64::from(steps));
                Ok((train, Coordination::BoundedStaleness(bounded)))
            }
        }
    }

    /// Whether all variables are of one step at any time.
    pub fn is_synchronous(&self) -> bool {
        matches!(self, Coordination::Sync(_))
    }
}
