//! Training recovers from processes that are killed in the middle of a job. The final variables of a synchronous job
//! equal those of a job without failures.

use crate::support::Fallible;
use crate::support::cluster::Cluster;
use crate::support::folder::Folder;
use crate::support::replica::{Replica, replica, train_through_master};
use anabranch::client::{Session, SessionOptions};
use anabranch::graph::{DType, Tensor};
use anabranch::train::{SyncMode, latest_checkpoint};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const WORKERS: usize = 2;
const STEPS: i64 = 60;

/// Trains on server processes while `disturb` kills or restarts them. Returns the final variables, and the number of
/// times that replicas recovered in a new session.
fn train(
    name: &str,
    sync: SyncMode,
    disturb: impl FnOnce(&mut Cluster, &dyn Fn(i64) -> Fallible) -> Fallible,
) -> Fallible<(Vec<Tensor>, u32)> {
    let folder = Folder::new(name)?;
    let mut cluster =
        Cluster::start_with(&[("ps", 2), ("worker", WORKERS), ("master", 1)], &["--connect-deadline", "2"])?;
    let targets: Vec<String> = (0..WORKERS).map(|w| cluster.target("worker", w)).collect();
    let observer = replica(0, sync)?;
    let observed = cluster.target("master", 0);
    let recoveries = thread::scope(|scope| -> Fallible<u32> {
        let workers: Vec<_> = targets
            .iter()
            .enumerate()
            .map(|(worker, target)| {
                let folder = folder.path();
                scope.spawn(move || {
                    train_through_master(worker as u32, target, Some(folder), sync, STEPS)
                        .map_err(|e| format!("worker {worker}: {e}"))
                })
            })
            .collect();
        let until = |step: i64| {
            until_step(&observed, &observer, step)?;
            until_saved(folder.path())
        };
        disturb(&mut cluster, &until)?;
        let mut recoveries = 0;
        for worker in workers {
            recoveries += worker.join().map_err(|_| "a worker panicked")??;
        }
        Ok(recoveries)
    })?;
    let session = Session::connect(&observed, observer.graph.clone(), SessionOptions::default())?;
    Ok((session.run(&[], &observer.values, &[])?, recoveries))
}

/// Waits until the global step is at least `step`.
fn until_step(target: &str, observer: &Replica, step: i64) -> Fallible {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut session = None;
    while Instant::now() < deadline {
        let open = || Session::connect(target, observer.graph.clone(), SessionOptions::default());
        let connected = match session.take() {
            Some(session) => Ok(session),
            None => open(),
        };
        if let Ok(connected) = connected {
            let read = connected.run(&[], &[observer.training.global_step], &[]);
            if read.is_ok_and(|v| v[0].item::<i64>().is_ok_and(|now| now >= step)) {
                return Ok(());
            }
            session = Some(connected);
        }
        thread::park_timeout(Duration::from_millis(2));
    }
    Err(format!("step {step} was not reached").into())
}

/// Waits until the folder has a checkpoint. Checkpoints are written while steps run, so on a busy machine many steps
/// may run before the first checkpoint is complete.
fn until_saved(folder: &Path) -> Fallible {
    let deadline = Instant::now() + Duration::from_secs(60);
    while latest_checkpoint(folder)?.is_none() {
        if Instant::now() > deadline {
            return Err(format!("nothing was saved in {}", folder.display()).into());
        }
        thread::park_timeout(Duration::from_millis(2));
    }
    Ok(())
}

fn restart(cluster: &mut Cluster, job: &str, index: usize) -> Fallible {
    cluster.kill(job, index)?;
    cluster.spawn(job, index)?;
    cluster.wait_until_listening(job, index)
}

const SYNC: SyncMode = SyncMode::Sync {
    replicas_to_aggregate: WORKERS as u32,
    backup: 0,
    aggregation: anabranch::train::Aggregation::InOrder,
};

/// Returns the final variables of a synchronous job without failures.
fn undisturbed() -> Fallible<Vec<Tensor>> {
    let (values, recoveries) = train("undisturbed", SYNC, |_, _| Ok(()))?;
    assert_eq!(recoveries, 0);
    Ok(values)
}

#[test]
fn restarted_worker_joins_again() -> Fallible {
    let disturbed = train("worker", SYNC, |cluster, until| {
        until(15)?;
        restart(cluster, "worker", 1)
    })?;
    assert!(disturbed.1 >= 1);
    assert_eq!(disturbed.0, undisturbed()?);
    Ok(())
}

#[test]
fn restarted_parameter_server_is_restored_from_the_checkpoint() -> Fallible {
    let disturbed = train("ps", SYNC, |cluster, until| {
        until(25)?;
        restart(cluster, "ps", 1)?;
        until(40)?;
        restart(cluster, "ps", 0)
    })?;
    assert!(disturbed.1 >= 2 * WORKERS as u32, "{}", disturbed.1);
    assert_eq!(disturbed.0, undisturbed()?);
    Ok(())
}

#[test]
fn chief_recovers_from_a_restart_of_its_master() -> Fallible {
    let disturbed = train("chief", SYNC, |cluster, until| {
        until(15)?;
        restart(cluster, "worker", 0)
    })?;
    assert!(disturbed.1 >= 1);
    assert_eq!(disturbed.0, undisturbed()?);
    Ok(())
}

#[test]
fn asynchronous_training_restores_the_lost_shard() -> Fallible {
    let (values, recoveries) = train("async", SyncMode::Async, |cluster, until| {
        until(25)?;
        restart(cluster, "ps", 1)
    })?;
    assert!(recoveries >= WORKERS as u32);
    for value in values.iter().filter(|v| v.dtype() == DType::Float) {
        assert!(value.values::<f32>()?.iter().all(|v| v.is_finite()), "{value:?}");
    }
    Ok(())
}
