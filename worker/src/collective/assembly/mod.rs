//! The assemblies of jobs whose workers may join and leave during training, kept by the leader of groups. A worker
//! calls its job's assembly when it has opened a session; an epoch begins when all workers have called, or when enough
//! have and no other has called for a while. During an epoch each worker keeps a call open that is answered when other
//! workers wait for the next epoch; the open call also shows that the worker is alive. At the end of its training a
//! worker waits until the others have ended theirs.

mod messages;
mod roster;

pub(super) use messages::answer_of;
pub(crate) use messages::{request_of, response_of};

use device::collective::{AssemblyCall, AssemblyPurpose};
use parking_lot::Mutex;
use proto::Status;
use roster::{Answers, Arrival, Finisher, Roster, Watcher};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout_at};

/// Time without arrivals and losses after which an epoch begins with fewer than all workers.
const GRACE: Duration = Duration::from_secs(1);

/// Time within which a worker that has received an answer must call again; otherwise it counts as lost.
const RETURN_TIME: Duration = Duration::from_secs(10);

/// Time for which a finished worker waits for the other workers of its epoch after one of them has left for the next
/// epoch.
const FINISH_GRACE: Duration = Duration::from_secs(3);

/// A worker's request to its job's assembly; see [`AssemblyCall`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AssemblyRequest {
    /// The handle of the worker's own session.
    pub(super) session: Arc<str>,
    pub(super) job_key: i32,
    pub(super) worker: u32,
    pub(super) epoch: i64,
    pub(super) purpose: AssemblyPurpose,
    pub(super) patience: Duration,
}

type Caller = oneshot::Sender<Result<Vec<i64>, Status>>;

/// The assemblies of a leader, by job.
#[derive(Debug, Default)]
pub(crate) struct Assemblies {
    rosters: Mutex<FxHashMap<i32, Roster<Caller>>>,
}

/// A worker's call. Dropping it before its answer reports to the roster that it ended without an answer.
struct Visit {
    assemblies: Arc<Assemblies>,
    job_key: i32,
    worker: u32,
    call: u64,
    /// True if the worker has ended its training.
    has_finished: bool,
    is_answered: bool,
}

impl AssemblyRequest {
    pub(super) fn new(session: Arc<str>, call: &AssemblyCall) -> AssemblyRequest {
        let AssemblyCall { job_key, worker, epoch, purpose, patience, .. } = *call;
        AssemblyRequest { session, job_key, worker, epoch, purpose, patience }
    }
}

impl Assemblies {
    /// Waits for the answer to a worker's request, at most for its patience. Returns the numbers of the answer: the next
    /// epoch and its workers, a change, or the workers that have not finished.
    ///
    /// # Errors
    /// `DeadlineExceeded` with the workers that have called and that have not, or with those that have not finished;
    /// `Aborted` if the worker calls again meanwhile; `InvalidArgument` for bounds that are not those of the other
    /// workers.
    pub(crate) async fn call(self: &Arc<Self>, request: AssemblyRequest) -> Result<Vec<i64>, Status> {
        let deadline = Instant::now() + request.patience;
        let (caller, answer) = oneshot::channel();
        let (job_key, worker) = (request.job_key, request.worker);
        let has_finished = matches!(request.purpose, AssemblyPurpose::Finish { .. });
        let call = self.begin(request, caller);
        let assemblies = self.clone();
        let mut visit = Visit { assemblies, job_key, worker, call, has_finished, is_answered: false };
        let answer = visit.wait(answer, deadline).await;
        visit.is_answered = true;
        visit.expect_return();
        answer
    }

    /// Records a request. Returns the number of its call.
    fn begin(&self, request: AssemblyRequest, caller: Caller) -> u64 {
        let AssemblyRequest { session, job_key, worker, epoch, purpose, .. } = request;
        self.with_roster(job_key, |roster| match purpose {
            AssemblyPurpose::Join { least, most, has_values } => {
                roster.join(Arrival { session, worker, least, most, has_values, epoch }, caller)
            }
            AssemblyPurpose::Watch { known } => {
                roster.watch(Watcher { session, worker, epoch, known }, caller)
            }
            AssemblyPurpose::Finish { step } => {
                roster.finish(Finisher { session, worker, epoch, step }, caller)
            }
        })
    }

    /// Changes a job's roster, and delivers the answers that have become possible.
    fn with_roster<T>(
        &self,
        job_key: i32,
        act: impl FnOnce(&mut Roster<Caller>) -> (T, Answers<Caller>),
    ) -> T {
        let (result, answers) = act(self.rosters.lock().entry(job_key).or_default());
        for (caller, answer) in answers {
            // A caller that has given up needs no answer.
            let _ = caller.send(answer);
        }
        result
    }
}

impl Visit {
    /// Waits for the answer, and begins the next epoch when a grace period has passed. A finished worker is answered
    /// [`FINISH_GRACE`] after another worker has left for the next epoch.
    async fn wait(
        &self,
        mut answer: oneshot::Receiver<Result<Vec<i64>, Status>>,
        deadline: Instant,
    ) -> Result<Vec<i64>, Status> {
        let mut left_since = None;
        loop {
            let changes = self.with_roster(|roster| (roster.changes(), Vec::new()));
            let until = deadline.min(Instant::now() + GRACE);
            match timeout_at(until.into(), &mut answer).await {
                Ok(answer) => return answer.unwrap_or_else(|_| Err(superseded())),
                Err(_) if until < deadline => {
                    self.with_roster(|roster| ((), roster.settle(changes)));
                    if !self.has_finished || !self.with_roster(|roster| (roster.has_left(), Vec::new())) {
                        left_since = None;
                    } else if left_since.get_or_insert_with(Instant::now).elapsed() >= FINISH_GRACE {
                        return self
                            .with_roster(|roster| (Ok(roster.give_up(self.worker, self.call)), Vec::new()));
                    }
                }
                // An answer that came just at the deadline is still delivered.
                Err(_) => match answer.try_recv() {
                    Ok(answer) => return answer,
                    Err(_) => {
                        return self
                            .with_roster(|roster| (roster.expire(self.worker, self.call), Vec::new()));
                    }
                },
            }
        }
    }

    /// Removes the worker from the roster unless it calls again within [`RETURN_TIME`].
    fn expect_return(&self) {
        let (assemblies, job_key) = (self.assemblies.clone(), self.job_key);
        let (worker, call) = (self.worker, self.call);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            sleep(RETURN_TIME).await;
            assemblies.with_roster(job_key, |roster| ((), roster.lose(worker, call)));
        });
    }

    fn with_roster<T>(&self, act: impl FnOnce(&mut Roster<Caller>) -> (T, Answers<Caller>)) -> T {
        self.assemblies.with_roster(self.job_key, act)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        if self.with_roster(|roster| roster.leave(self.worker, self.call)) {
            self.expect_return();
        }
    }
}

fn superseded() -> Status {
    Status::new(graph::Code::Aborted, "the worker has called its assembly again")
}
