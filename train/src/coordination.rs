//! The coordination between replicas: independent workers, synchronous steps, bounded staleness, or all-reduce.

use crate::all_reduce::AllReduceReplica;
use crate::gradient::Gradient;
use crate::staleness::BoundedStaleness;
use crate::strategy::SyncMode;
use crate::sync::SyncReplicas;
use crate::training::UpdateRule;
use crate::variables::{Variable, Variables};
use graph::{Error, NodeId, Result, Scope};

/// The nodes that coordinate a replica with the other replicas; a [`MonitoredSession`](crate::MonitoredSession) runs
/// them.
#[derive(Clone, Debug)]
pub enum Coordination {
    /// Independent workers: no replica waits for another replica.
    Free,
    Sync(Box<SyncReplicas>),
    BoundedStaleness(BoundedStaleness),
    /// Workers that hold all variables and combine their gradients in each step.
    AllReduce(Box<AllReduceReplica>),
}

impl Coordination {
    /// Adds the nodes of a replica's training step, which applies `gradients` or pushes them to the parameter servers.
    pub(crate) fn build(
        scope: &Scope,
        variables: &Variables,
        rule: &UpdateRule<'_>,
        gradients: &[(Variable, Gradient)],
        worker: u32,
        sync: SyncMode,
    ) -> Result<(NodeId, Coordination)> {
        let check_worker = |worker: u32, workers: u32| {
            if worker < workers {
                return Ok((worker as usize, workers as usize));
            }
            Err(Error::invalid(format!(
                "worker {worker} is none of the {workers} workers that wait for each other"
            )))
        };
        match sync {
            SyncMode::Async => Ok((rule.apply(scope, variables, gradients), Coordination::Free)),
            SyncMode::Sync { replicas_to_aggregate: 0, .. } => {
                Err(Error::invalid("SyncMode::Sync aggregates the gradients of no replicas"))
            }
            SyncMode::Sync { replicas_to_aggregate, backup, aggregation } => {
                let (worker, workers) = check_worker(worker, replicas_to_aggregate.saturating_add(backup))?;
                let required = replicas_to_aggregate as usize;
                let builder =
                    crate::sync::ReplicaBuilder { scope, variables, rule, worker, workers, required };
                let (train, sync) = builder.build(gradients, aggregation);
                Ok((train, Coordination::Sync(Box::new(sync))))
            }
            SyncMode::BoundedStaleness { steps, workers } => {
                let (worker, workers) = check_worker(worker, workers)?;
                let updated = rule.apply(scope, variables, gradients);
                let (train, bounded) =
                    BoundedStaleness::build(scope, variables, updated, worker, workers, i64::from(steps));
                Ok((train, Coordination::BoundedStaleness(bounded)))
            }
        }
    }

    /// Returns whether the replicas are synchronous, so that between two updates all variables have the values of one
    /// global step.
    pub fn is_synchronous(&self) -> bool {
        matches!(self, Coordination::Sync(_) | Coordination::AllReduce(_))
    }

    /// Returns whether each replica has all variables, rather than sharing them with the other replicas.
    pub(crate) fn replicates_variables(&self) -> bool {
        matches!(self, Coordination::AllReduce(_))
    }
}
