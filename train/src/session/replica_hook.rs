//! The hook that coordinates a replica with the other replicas of its job.

use super::{Hook, HookContext, MonitoredConfig, RunArgs, RunValues};
use crate::all_reduce::{AllReduceReplica, Attendance};
use crate::coordination::Coordination;
use crate::error::{Error, Result};
use crate::sync::{Aggregator, GradientStore, SyncReplicas, SyncReport};
use crate::training::Training;
use client::Session;
use graph::{Bool8, Output};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The hook by which a replica takes part in its job: it reports each gradient that this worker has pushed, and the
/// worker's end; under bounded staleness it waits for slower workers; on the chief it runs the thread that applies the
/// gradients.
pub(super) struct ReplicaHook {
    coordination: Coordination,
    probes: Vec<(String, Output)>,
    foreign_chief: bool,
    step_deadline: Duration,
    stop_grace: Duration,
    recovery_deadline: Duration,
    report: Arc<Mutex<SyncReport>>,
    /// The worker's participation in the epochs of an all-reduce job.
    attendance: Arc<Attendance>,
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    /// True once the last step is saved and all replicas have been released from the job.
    is_job_over: bool,
    /// True once this worker of an all-reduce job has ended its training in the present session.
    has_finished: bool,
}

impl ReplicaHook {
    /// Returns the hook for a training step.
    pub(super) fn new(
        training: &Training,
        config: &MonitoredConfig,
        report: Arc<Mutex<SyncReport>>,
        attendance: Arc<Attendance>,
    ) -> ReplicaHook {
        ReplicaHook {
            coordination: training.coordination.clone(),
            probes: training.probes.clone(),
            foreign_chief: config.foreign_chief,
            step_deadline: config.step_deadline,
            stop_grace: config.stop_grace,
            recovery_deadline: config.recovery_deadline,
            report,
            attendance,
            thread: None,
            stop: Arc::default(),
            is_job_over: false,
            has_finished: false,
        }
    }

    /// Starts the chief's thread, which applies the workers' gradients.
    fn start(&mut self, context: &HookContext<'_>, sync: &SyncReplicas) -> Result<()> {
        self.stop = Arc::default();
        let (session, coordinator) = (context.session.clone(), context.coordinator.clone());
        let (sync, stop, probes) = (sync.clone(), self.stop.clone(), self.probes.clone());
        let (lock, report, deadline) = (context.lock.clone(), self.report.clone(), self.step_deadline);
        let body = move || {
            let aggregator =
                Aggregator { session: &session, sync: &sync, probes: &probes, lock, report, deadline };
            match aggregator.run(|| stop.load(Ordering::Acquire)) {
                Ok(()) => {}
                // Errors are no failure once this replica has stopped the thread or closed the session.
                Err(_) if stop.load(Ordering::Acquire) || session.is_closed() => {}
                Err(error) => {
                    coordinator.record_failure(error);
                    // Closing the session ends this replica's own step, which would wait forever for a token that only
                    // this thread enqueues.
                    let _ = session.close();
                }
            }
        };
        let thread = thread::Builder::new().name("sync-replicas".to_owned()).spawn(body);
        self.thread = Some(thread.map_err(|e| Error::file("sync-replicas", &e))?);
        Ok(())
    }

    /// Records that this worker has finished; the chief then waits until all workers have finished.
    pub(super) fn finish(&mut self, context: &HookContext<'_>) -> Result<()> {
        if self.is_job_over {
            self.stop.store(true, Ordering::Release);
            return Ok(());
        }
        match self.coordination.clone() {
            Coordination::BoundedStaleness(bounded) => bounded.finish(context.session),
            Coordination::AllReduce(replica) => {
                self.finish_training(context, &replica);
                Ok(())
            }
            Coordination::Sync(sync) if context.is_chief && !self.foreign_chief => {
                sync.finish(context.session)?;
                self.join_chief_thread(context.session, &sync)
            }
            _ => Ok(()),
        }
    }

    /// Ends the training of this worker of an all-reduce job, once per session. An error is only logged, because later
    /// hooks report the failure of the session.
    fn finish_training(&mut self, context: &HookContext<'_>, replica: &AllReduceReplica) {
        if std::mem::replace(&mut self.has_finished, true) {
            return;
        }
        match context.global_step() {
            Ok(step) => replica.finish(&self.attendance, context.session, step, self.stop_grace),
            Err(error) => tracing::warn!("the end of training is not told to the other workers: {error}"),
        }
    }

    /// Records that this replica has left. The record of the chief means that the last step is saved.
    pub(super) fn leave(&mut self, context: &HookContext<'_>) -> Result<()> {
        match &self.coordination {
            _ if self.is_job_over || self.foreign_chief => Ok(()),
            Coordination::Sync(sync) if context.is_chief => {
                sync.leave(context.session, context.global_step()?)
            }
            Coordination::Sync(sync) => sync.leave_early(context.session),
            _ => Ok(()),
        }
    }

    /// Waits until the chief's thread ends, which it does when the last replica has finished.
    fn join_chief_thread(&mut self, session: &Session, sync: &SyncReplicas) -> Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let started = Instant::now();
        while !thread.is_finished() && started.elapsed() < self.stop_grace {
            thread::park_timeout(Duration::from_millis(1));
        }
        if !thread.is_finished() {
            self.stop.store(true, Ordering::Release);
            let waited = started.elapsed();
            let names = vec!["sync-replicas, which waits for other replicas".to_owned()];
            let stalled = sync.stalled(session, waited).ok().flatten();
            return Err(stalled.unwrap_or(Error::ThreadsStillRunning { waited, names }));
        }
        Ok(())
    }
}

impl Hook for ReplicaHook {
    fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        match self.coordination.clone() {
            Coordination::Sync(sync) if context.is_chief => self.start(context, &sync),
            Coordination::AllReduce(_) => {
                self.attendance.set_global_step(context.global_step()?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn before_run(&mut self, context: &HookContext<'_>) -> Result<RunArgs> {
        match &self.coordination {
            Coordination::Free => Ok(RunArgs::default()),
            Coordination::AllReduce(replica) => {
                self.attendance.check()?;
                let feeds = self.attendance.membership().map(|found| replica.feeds(&found));
                let fetches = replica.fetches();
                Ok(RunArgs { feeds: feeds.unwrap_or_default(), fetches, ..RunArgs::default() })
            }
            Coordination::Sync(sync) => {
                let targets = if self.foreign_chief { Vec::new() } else { vec![sync.worker_nodes.report] };
                let fetches = vec![sync.worker_nodes.local_step, sync.worker_nodes.is_stale];
                Ok(RunArgs { targets, fetches, ..RunArgs::default() })
            }
            Coordination::BoundedStaleness(bounded) => {
                let should_stop = || context.coordinator.should_stop();
                bounded.wait(context.session, self.step_deadline, should_stop)?;
                Ok(RunArgs::default())
            }
        }
    }

    fn after_run(&mut self, _: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        if let (Coordination::Sync(sync), [step, is_stale]) = (&self.coordination, run.values)
            && matches!(sync.gradients, GradientStore::Accumulators(_))
            && is_stale.item::<Bool8>()?.get()
        {
            *self.report.lock().dropped.entry((sync.worker, step.item()?)).or_default() += 1;
        }
        match &self.coordination {
            Coordination::AllReduce(replica) => replica.check(run.values),
            _ => Ok(()),
        }
    }

    fn before_recovery(&mut self, context: &HookContext<'_>) {
        self.stop.store(true, Ordering::Release);
        // Closing the session ends the runs that threads wait for. An error is ignored, because a dead task cannot
        // answer.
        let _ = context.session.close();
        self.attendance.stop();
        self.has_finished = false;
        if let Some(thread) = self.thread.take() {
            // The result is ignored, because the thread has reported its failure to the coordinator.
            let _ = thread.join();
        }
        // A failure in the old session no longer matters.
        if context.coordinator.failure().is_some_and(|error| error.is_transient()) {
            context.coordinator.take_failure();
        }
    }

    fn after_last_step(&mut self, context: &HookContext<'_>) -> Result<()> {
        let (sync, last_step) = match (self.coordination.clone(), context.coordinator.reached_last_step()) {
            (Coordination::Sync(sync), Some(last_step)) => (sync, last_step),
            (Coordination::AllReduce(replica), _) => {
                self.finish_training(context, &replica);
                return Ok(());
            }
            _ => return Ok(()),
        };
        if self.foreign_chief {
            return Ok(());
        }
        sync.finish(context.session)?;
        if context.is_chief {
            sync.release_workers(context.session, last_step, self.stop_grace)?;
        } else {
            let time_limit = self.stop_grace.max(self.recovery_deadline);
            sync.await_release(context.session, last_step, time_limit)?;
        }
        self.is_job_over = true;
        Ok(())
    }
}

impl fmt::Debug for ReplicaHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplicaHook({:?})", self.thread)
    }
}
