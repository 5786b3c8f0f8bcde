//! The leader epochs that sessions of this worker have begun. Once an epoch of a job has begun, sessions in earlier
//! epochs of the job run no more steps.

use crate::steps::StepState;
use device::Error;
use graph::{Code, TaskName};
use parking_lot::Mutex;
use proto::{Epoch, Status};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// Maximum number of epoch names, which are names of jobs; the worker remembers each name for as long as it runs.
const MAX_NAMES: usize = 100_000;

/// For each epoch name, the highest epoch number that has begun, and the sessions that belong to an epoch.
#[derive(Debug)]
pub(crate) struct Epochs {
    task: TaskName,
    by_name: Mutex<BTreeMap<String, EpochState>>,
}

#[derive(Debug, Default)]
struct EpochState {
    highest: i64,
    session_epochs: Vec<Weak<SessionEpoch>>,
}

impl Epochs {
    pub(crate) fn new(task: TaskName) -> Epochs {
        Epochs { task, by_name: Mutex::default() }
    }

    /// Adds a session to an epoch and ends all earlier epochs of that name: their running steps are
    /// cancelled, and have ended when this function returns.
    ///
    /// # Errors
    /// `Aborted` naming both epochs if a later epoch has begun, `Unavailable` if steps of an earlier epoch do
    /// not end within `grace`, `ResourceExhausted` for too many epoch names.
    pub(crate) async fn begin(&self, epoch: &Epoch, grace: Duration) -> Result<Arc<SessionEpoch>, Status> {
        let session_epoch = Arc::new(SessionEpoch {
            epoch: epoch.clone(),
            state: Mutex::default(),
            running_steps: watch::Sender::new(0),
        });
        for earlier in self.register(&session_epoch)? {
            earlier.end(epoch, &self.task);
            let mut running_steps = earlier.running_steps.subscribe();
            let idle = timeout(grace, running_steps.wait_for(|steps| *steps == 0)).await;
            if idle.is_err() {
                let text = format!("steps of {} still run on {} after {grace:?}", earlier.epoch, self.task);
                return Err(Status::new(Code::Unavailable, text));
            }
        }
        Ok(session_epoch)
    }

    /// Adds the session to its epoch. Returns the sessions of earlier epochs of the same name.
    fn register(&self, session_epoch: &Arc<SessionEpoch>) -> Result<Vec<Arc<SessionEpoch>>, Status> {
        let epoch = &session_epoch.epoch;
        let mut by_name = self.by_name.lock();
        if by_name.len() >= MAX_NAMES && !by_name.contains_key(&epoch.name) {
            let text = format!("{} has seen epochs of {MAX_NAMES} names, and takes no more", self.task);
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        let state = by_name.entry(epoch.name.clone()).or_default();
        if epoch.number < state.highest {
            let later = Epoch { number: state.highest, ..epoch.clone() };
            let refusal = ended_error(epoch, &later, &self.task);
            return Err(Status::new(refusal.code(), refusal.to_string()));
        }
        state.highest = epoch.number;
        let alive: Vec<Arc<SessionEpoch>> = state.session_epochs.iter().filter_map(Weak::upgrade).collect();
        state.session_epochs.retain(|t| t.strong_count() > 0);
        state.session_epochs.push(Arc::downgrade(session_epoch));
        Ok(alive.into_iter().filter(|t| t.epoch.number < epoch.number).collect())
    }
}

fn ended_error(epoch: &Epoch, later: &Epoch, task: &TaskName) -> Error {
    Error::new(Code::Aborted, format!("{epoch} is over: {task} has seen epoch {}", later.number))
}

/// A session's membership in an epoch, with its running steps.
#[derive(Debug)]
pub(crate) struct SessionEpoch {
    epoch: Epoch,
    state: Mutex<SessionEpochState>,
    /// Number of running steps.
    running_steps: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct SessionEpochState {
    ended: Option<Error>,
    steps: Vec<Arc<StepState>>,
}

impl SessionEpoch {
    /// Checks that the epoch is current.
    ///
    /// # Errors
    /// `Aborted` naming both epochs if a later epoch of the same name has begun.
    pub(crate) fn check(&self) -> Result<(), Status> {
        let over = self.state.lock().ended.clone();
        over.map_or(Ok(()), |error| Err(Status::new(error.code(), error.to_string())))
    }

    /// Counts a step as running in this epoch until the returned guard is dropped.
    ///
    /// # Errors
    /// Those of [`SessionEpoch::check`].
    pub(crate) fn enter(self: &Arc<Self>, step: &Arc<StepState>) -> Result<EpochGuard, Status> {
        let mut state = self.state.lock();
        if let Some(error) = &state.ended {
            return Err(Status::new(error.code(), error.to_string()));
        }
        state.steps.push(step.clone());
        self.running_steps.send_modify(|n| *n += 1);
        Ok(EpochGuard { session_epoch: self.clone(), step: step.clone() })
    }

    /// Refuses further steps of this session and cancels its running steps.
    fn end(&self, later: &Epoch, task: &TaskName) {
        let reason = ended_error(&self.epoch, later, task);
        let steps = {
            let mut state = self.state.lock();
            state.ended = Some(reason.clone());
            state.steps.clone()
        };
        for step in steps {
            step.cancel(reason.clone());
        }
    }
}

/// A guard that counts a step as running in its session's epoch until the guard is dropped.
#[derive(Debug)]
pub(crate) struct EpochGuard {
    session_epoch: Arc<SessionEpoch>,
    step: Arc<StepState>,
}

impl Drop for EpochGuard {
    fn drop(&mut self) {
        {
            let mut state = self.session_epoch.state.lock();
            if let Some(at) = state.steps.iter().position(|step| Arc::ptr_eq(step, &self.step)) {
                state.steps.swap_remove(at);
            }
        }
        self.session_epoch.running_steps.send_modify(|n| *n -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::Steps;
    use std::time::Instant;

    const GRACE: Duration = Duration::from_secs(60);

    fn epoch(name: &str, number: i64) -> Epoch {
        Epoch { name: name.to_owned(), number }
    }

    fn epochs() -> Epochs {
        Epochs::new(TaskName::new("ps", 0))
    }

    fn text<T>(result: Result<T, Status>) -> Option<(Code, String)> {
        result.err().map(|status| (status.code, status.message))
    }

    #[tokio::test]
    async fn a_lower_epoch_is_refused_naming_both_numbers_and_the_task() -> Result<(), Status> {
        let epochs = epochs();
        let first = epochs.begin(&epoch("job", 3), GRACE).await?;
        let second = epochs.begin(&epoch("job", 3), GRACE).await?;
        assert!(first.check().is_ok() && second.check().is_ok());
        let _later = epochs.begin(&epoch("job", 5), GRACE).await?;
        let over = Some((
            Code::Aborted,
            "epoch 3 of 'job' is over: /job:ps/replica:0/task:0 has seen epoch 5".to_owned(),
        ));
        assert_eq!([text(first.check()), text(second.check())], [over.clone(), over.clone()]);
        assert_eq!(text(epochs.begin(&epoch("job", 3), GRACE).await), over);
        epochs.begin(&epoch("another", 1), GRACE).await.map(drop)
    }

    #[tokio::test]
    async fn a_later_epoch_waits_for_steps_of_earlier_ones() -> Result<(), Status> {
        let epochs = Arc::new(epochs());
        let steps = Arc::new(Steps::new(TaskName::new("ps", 0), GRACE));
        let first = epochs.begin(&epoch("job", 1), GRACE).await?;
        let run = steps.begin(7, Instant::now())?;
        let guard = first.enter(&run.step)?;
        let late = epochs.begin(&epoch("job", 2), Duration::from_millis(10)).await;
        let text_of_late = "steps of epoch 1 of 'job' still run on /job:ps/replica:0/task:0 after 10ms";
        assert_eq!(text(late), Some((Code::Unavailable, text_of_late.to_owned())));
        assert!(run.step.cancellation.check().is_err() && first.enter(&run.step).is_err());
        let waiting = tokio::spawn({
            let epochs = epochs.clone();
            async move { epochs.begin(&epoch("job", 2), GRACE).await }
        });
        drop(guard);
        assert!(waiting.await.is_ok_and(|begun| begun.is_ok()));
        Ok(())
    }
}
