//! Runs a training job: in this process, on a cluster with one client for each worker, or as one worker beside the other
//! processes of a launcher.

use super::cluster::Cluster;
use super::mode::{Compute, Mode, Place};
use super::problem::Problem;
use super::replica::Replica;
use super::report::{Outcome, Progress};
use client::process_group::LaunchedTask;
use client::{Server, ServerConfig};
use std::error::Error;
use std::sync::Arc;
use std::thread;
use train::Master;

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The replication of a model, and the size of its training.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) mode: Mode,
    pub(super) compute: Compute,
    pub(super) steps: u64,
    /// Number of examples in a step.
    pub(super) batch: usize,
}

impl Plan {
    fn replica(self, problem: &Problem, place: Place) -> Fallible<Replica> {
        let Plan { mode, compute, steps, batch } = self;
        Ok(Replica::build(problem, mode, compute, place, steps, batch)?)
    }
}

/// Trains a model with all clients in this process.
pub(super) fn run(problem: &Problem, plan: Plan) -> Fallible<Outcome> {
    let mode = plan.mode;
    let progress = Progress::start(plan.steps);
    let workers = mode.clients();
    let replica = |worker| plan.replica(problem, Place { worker, workers });
    if let Some(cpu_devices) = mode.devices_of_one_process() {
        let server = Server::new(ServerConfig { cpu_devices, ..ServerConfig::default() })?;
        let outcome = replica(0)?.train(problem, Master::InProcess(Arc::new(server)), &progress)?;
        progress.finish();
        return Ok(outcome);
    }
    let cluster = Cluster::start(mode.servers(), workers)?;
    progress.print_line(&format!("started {}", cluster.describe()));
    let outcomes = thread::scope(|scope| {
        let clients: Vec<_> = (0..)
            .zip(cluster.targets())
            .map(|(worker, target)| {
                let (replica, progress) = (&replica, &progress);
                scope.spawn(move || replica(worker)?.train(problem, Master::Remote(target), progress))
            })
            .collect();
        clients.into_iter().map(thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    progress.finish();
    let mut chief = None;
    for outcome in outcomes {
        let outcome = outcome.map_err(|_| "a replica's thread panicked")??;
        chief.get_or_insert(outcome);
    }
    cluster.stop()?;
    Ok(chief.ok_or("no replica ran")?)
}

/// Trains a model as one of the processes of a launcher, each of which has one worker and its client. Returns the outcome
/// on the process with rank 0.
pub(super) fn run_launched(
    problem: &Problem,
    plan: Plan,
    launched: LaunchedTask,
) -> Fallible<Option<Outcome>> {
    let workers = u32::try_from(launched.cluster.tasks().count())?;
    let place = Place { worker: launched.task.task, workers };
    let replica = plan.replica(problem, place)?;
    let progress = if place.worker == 0 { Progress::start(plan.steps) } else { Progress::hidden() };
    let cluster = Cluster::start_launched(launched)?;
    progress.print_line(&format!("started {}", cluster.describe()));
    let target = cluster.targets().pop().ok_or("the cluster has no worker")?;
    let outcome = replica.train(problem, Master::Remote(target), &progress)?;
    if place.worker == 0 {
        progress.finish();
    }
    cluster.stop()?;
    Ok((place.worker == 0).then_some(outcome))
}
