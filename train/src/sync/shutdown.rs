//! The end of a synchronous job: no worker leaves while the last step may still be lost, because all workers are needed
//! to repeat it.
//!
//! A worker that reaches the last step marks itself as finished in `sync_rep_pushed`, and waits. The chief saves its
//! checkpoint; once no worker is in a step, it writes the last step to its row of `sync_rep_left`. The other workers
//! read that row, write their own rows and leave; the chief waits for them and leaves last. Both vectors are on the
//! device of the global step: if its parameter server dies, the job returns to an earlier step and no row of
//! `sync_rep_left` is set.

use super::replica::{FINISHED, SyncReplicas, UNSET};
use super::roster::{EARLY, WorkerRow};
use crate::error::{Error, Result};
use client::Session;
use graph::{NodeId, Output, Tensor};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that the chief waits for other workers to leave. A worker that has not left by then is dead, or
/// finds the saved state when it joins again.
const LONGEST_WAIT_FOR_LEAVING: Duration = Duration::from_secs(10);

const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The node that records that this worker has left, and the placeholder of the recorded step.
#[derive(Clone, Debug)]
pub(super) struct LeaveNodes {
    /// Writes `mark` to this worker's row of `sync_rep_left`.
    pub(super) leave: NodeId,
    /// The step to record, a vector of one `int64` to be fed.
    pub(super) mark: Output,
}

/// The global step of the job, and the roster row of each worker.
struct JobProgress {
    step: i64,
    workers: Vec<WorkerRow>,
}

impl JobProgress {
    /// Returns whether `last_step` is saved: the chief, which writes its row first, or another worker has recorded that
    /// it left at that step.
    fn is_last_step_saved(&self, last_step: i64) -> bool {
        self.workers.iter().any(|worker| worker.left >= last_step)
    }

    /// Returns the workers that have pushed and not finished. A worker that has not pushed since it joined is left out:
    /// it finds that the job is over at its first push or in a later session.
    fn workers_in_step(&self) -> Vec<usize> {
        self.workers_where(|worker| worker.pushed != FINISHED && worker.pushed != UNSET)
    }

    /// Returns the workers that have finished and wait for the chief.
    fn waiting_workers(&self) -> Vec<usize> {
        self.workers_where(|worker| worker.pushed == FINISHED && worker.left == UNSET)
    }

    /// Returns the workers whose rows satisfy `matches`.
    fn workers_where(&self, matches: impl Fn(&WorkerRow) -> bool) -> Vec<usize> {
        let workers = self.workers.iter().enumerate();
        workers.filter(|(_, row)| matches(row)).map(|(worker, _)| worker).collect()
    }
}

/// The end of a synchronous job.
impl SyncReplicas {
    /// Records that this worker pushes no more gradients.
    pub(crate) fn finish(&self, session: &Session) -> Result<()> {
        session.run(&[], &[], &[self.worker_nodes.finish])?;
        Ok(())
    }

    /// Lets the other workers leave after the last step, which the chief has saved, and waits until they have left.
    /// First waits for workers in a step to finish it, for at most `time_limit`.
    pub(crate) fn release_workers(
        &self,
        session: &Session,
        last_step: i64,
        time_limit: Duration,
    ) -> Result<()> {
        let missing = self
            .poll_until(session, time_limit, |progress| progress.workers_in_step().is_empty())?
            .workers_in_step();
        if !missing.is_empty() {
            // The missing workers may be dead, and the job does not need them any more.
            tracing::warn!("workers {missing:?} have not come to step {last_step} within {time_limit:?}");
        }
        self.leave(session, last_step)?;
        self.release_others(session)?;
        let time_limit = time_limit.min(LONGEST_WAIT_FOR_LEAVING);
        let waiting_workers = self
            .poll_until(session, time_limit, |progress| progress.waiting_workers().is_empty())?
            .waiting_workers();
        if !waiting_workers.is_empty() {
            tracing::warn!("workers {waiting_workers:?} have not left; the job is over");
        }
        Ok(())
    }

    /// Waits until the chief has recorded that the last step is saved, then records that this worker leaves. Leaves
    /// without the chief's record after `time_limit`.
    ///
    /// # Errors
    /// `StepsLost` if the job has gone back to an earlier step, so that all replicas have to repeat steps.
    pub(crate) fn await_release(
        &self,
        session: &Session,
        last_step: i64,
        time_limit: Duration,
    ) -> Result<()> {
        let is_over =
            |progress: &JobProgress| progress.step < last_step || progress.is_last_step_saved(last_step);
        let last = self.poll_until(session, time_limit, is_over)?;
        if last.step < last_step {
            return Err(Error::StepsLost { from: last_step, to: last.step });
        }
        if !last.is_last_step_saved(last_step) {
            tracing::warn!(
                "the chief has not reported within {time_limit:?} that step {last_step} is saved: worker {} leaves",
                self.worker
            );
        }
        self.leave(session, last_step).or_else(|error| {
            tracing::info!("worker {} leaves without a record of it: {error}", self.worker);
            Ok(())
        })
    }

    /// Records that this worker leaves before the last step, without waiting for the chief.
    pub(crate) fn leave_early(&self, session: &Session) -> Result<()> {
        self.finish(session)?;
        self.leave(session, EARLY)
    }

    /// Records that this worker has left at `step`. The chief's record tells workers that have reached `step` that they
    /// may leave.
    pub(crate) fn leave(&self, session: &Session, step: i64) -> Result<()> {
        session.run(
            &[(self.worker_nodes.leave.mark, Tensor::vector(&[step])?)],
            &[],
            &[self.worker_nodes.leave.leave],
        )?;
        Ok(())
    }

    /// Reads the job's progress repeatedly until `is_done` holds for it or `time_limit` has passed. Returns the last value.
    fn poll_until(
        &self,
        session: &Session,
        time_limit: Duration,
        is_done: impl Fn(&JobProgress) -> bool,
    ) -> Result<JobProgress> {
        let (started, mut pause) = (Instant::now(), SHORTEST_PAUSE);
        loop {
            let progress = self.progress(session)?;
            if is_done(&progress) || started.elapsed() >= time_limit {
                return Ok(progress);
            }
            thread::park_timeout(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Reads the job's global step and the roster.
    fn progress(&self, session: &Session) -> Result<JobProgress> {
        let step = session.run(&[], &[self.global_step], &[])?;
        let step = step.first().map(Tensor::item::<i64>).transpose()?.unwrap_or_default();
        Ok(JobProgress { step, workers: self.roster.read(session)? })
    }
}
