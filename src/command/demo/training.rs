//! Runs a training job: in this process, or on a cluster with one client for each worker.

use super::cluster::Cluster;
use super::mode::{Compute, Mode};
use super::problem::Problem;
use super::replica::Replica;
use super::report::{Outcome, Progress};
use client::{Server, ServerConfig};
use std::error::Error;
use std::sync::Arc;
use std::thread;
use train::Master;

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Trains a model. If `None` is given for the number of steps, or of examples in a step, the problem's default is used.
pub(super) fn run(
    problem: &Problem,
    mode: Mode,
    compute: Compute,
    steps: Option<u64>,
    batch: Option<usize>,
) -> Fallible<Outcome> {
    let steps = steps.unwrap_or(problem.steps);
    let batch = batch.unwrap_or(problem.batch);
    let progress = Progress::start(steps);
    let replica = |worker| Replica::build(problem, mode, compute, worker, steps, batch);
    if let Some(cpu_devices) = mode.devices_of_one_process() {
        let server = Server::new(ServerConfig { cpu_devices, ..ServerConfig::default() })?;
        let outcome = replica(0)?.train(problem, Master::InProcess(Arc::new(server)), &progress)?;
        progress.finish();
        return Ok(outcome);
    }
    let cluster = Cluster::start(mode.servers(), mode.clients())?;
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
