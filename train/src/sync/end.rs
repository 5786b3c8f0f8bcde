//! The end of a synchronous job: nobody leaves while the last step may still be lost, since all are needed to do it again.
//!
//! Whoever has come to the last step says so in `sync_rep_pushed`, and waits. The chief has saved by then what it saves;
//! once no replica is in the middle of a step it leaves a mark in `sync_rep_left`, the others see that and leave theirs,
//! and the chief goes last. All of it lies beside the global step: if that parameter server dies, the job goes back and
//! no mark is left.

use super::replica::{FINISHED, NOTHING, SyncReplicas};
use super::roster::{EARLY, Entry};
use crate::error::{Error, Result};
use client::Session;
use graph::{NodeId, Output, Tensor};
use std::thread;
use std::time::{Duration, Instant};

/// How long the chief waits for others to see that they may leave. Who has not by then is dead, or comes back to what
/// is saved.
const LONGEST_FAREWELL: Duration = Duration::from_secs(10);

const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The graph's part of it.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// Writes this replica's `mark` to `sync_rep_left`, a vector of one `int64` to be fed.
    pub(super) leave: NodeId,
    pub(super) mark: Output,
}

/// How far the replicas are.
struct Progress {
    step: i64,
    workers: Vec<Entry>,
}

impl Progress {
    /// Whether the chief has left at this step, and others perhaps.
    fn is_safe(&self, last_step: i64) -> bool {
        self.workers.iter().any(|worker| worker.left >= last_step)
    }

    /// Workers in the middle of a step. One that has not pushed since it came learns with its first push, or when it
    /// comes, that the job is over.
    fn in_a_step(&self) -> Vec<usize> {
        self.which(|worker| worker.pushed != FINISHED && worker.pushed != NOTHING)
    }

    /// Workers that wait for the chief.
    fn staying(&self) -> Vec<usize> {
        self.which(|worker| worker.pushed == FINISHED && worker.left == NOTHING)
    }

    fn which(&self, is_one: impl Fn(&Entry) -> bool) -> Vec<usize> {
        let workers = self.workers.iter().enumerate();
        workers.filter(|(_, entry)| is_one(entry)).map(|(worker, _)| worker).collect()
    }
}

/// The end of training. A replica that comes to it has said that it pushes no more gradients.
impl SyncReplicas {
    /// Says that no more gradients come from this replica.
    pub(crate) fn finish(&self, session: &Session) -> Result<()> {
        session.run(&[], &[], &[self.finish])?;
        Ok(())
    }

    /// The chief's part when the last step is safe: lets the others leave, and waits until they have. Those that are
    /// in the middle of a step are waited for so long.
    pub(crate) fn dismiss(&self, session: &Session, last_step: i64, patience: Duration) -> Result<()> {
        let missing = self.watch(session, patience, |now| now.in_a_step().is_empty())?.in_a_step();
        if !missing.is_empty() {
            // They may be dead. What they are for is done.
            tracing::warn!("workers {missing:?} have not come to step {last_step} within {patience:?}");
        }
        self.leave(session, last_step)?;
        self.release_others(session)?;
        let patience = patience.min(LONGEST_FAREWELL);
        let staying = self.watch(session, patience, |now| now.staying().is_empty())?.staying();
        if !staying.is_empty() {
            tracing::warn!("workers {staying:?} have not left; what they wait for is done");
        }
        Ok(())
    }

    /// Another replica's part: waits until the chief says that the last step is safe. It leaves without that after so
    /// long.
    ///
    /// # Errors
    /// `WentBack` when steps are lost, which all replicas have to do again.
    pub(crate) fn await_dismissal(
        &self,
        session: &Session,
        last_step: i64,
        patience: Duration,
    ) -> Result<()> {
        let is_over = |now: &Progress| now.step < last_step || now.is_safe(last_step);
        let last = self.watch(session, patience, is_over)?;
        if last.step < last_step {
            return Err(Error::WentBack { from: last_step, to: last.step });
        }
        if !last.is_safe(last_step) {
            tracing::warn!(
                "the chief has not said within {patience:?} that step {last_step} is safe: worker {} leaves",
                self.worker
            );
        }
        self.leave(session, last_step).or_else(|error| {
            tracing::info!("worker {} leaves unseen: {error}", self.worker);
            Ok(())
        })
    }

    /// Leaves before the last step, without waiting.
    pub(crate) fn leave_early(&self, session: &Session) -> Result<()> {
        self.finish(session)?;
        self.leave(session, EARLY)
    }

    /// Says that this replica is gone. From the chief it says that others may go who have come to this step.
    pub(crate) fn leave(&self, session: &Session, step: i64) -> Result<()> {
        session.run(&[(self.end.mark, Tensor::vector(&[step])?)], &[], &[self.end.leave])?;
        Ok(())
    }

    /// Looks until it is so or the time is over; what there was at last.
    fn watch(
        &self,
        session: &Session,
        patience: Duration,
        is_so: impl Fn(&Progress) -> bool,
    ) -> Result<Progress> {
        let (started, mut pause) = (Instant::now(), SHORTEST_PAUSE);
        loop {
            let now = self.progress(session)?;
            if is_so(&now) || started.elapsed() >= patience {
                return Ok(now);
            }
            thread::park_timeout(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn progress(&self, session: &Session) -> Result<Progress> {
        let step = session.run(&[], &[self.global_step], &[])?;
        let step = step.first().map(Tensor::item::<i64>).transpose()?.unwrap_or_default();
        Ok(Progress { step, workers: self.roster.read(session)? })
    }
}
