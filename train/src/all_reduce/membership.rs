//! The workers of an all-reduce job that train together, which may change from epoch to epoch. A worker that has opened
//! a session calls the job's assembly at the leader of collectives, which begins an epoch. During an epoch a thread of
//! each worker watches for workers that wait for the next epoch. A worker whose training ends waits in the assembly
//! until the others have ended theirs, because its session is part of their last step and its process may host the
//! leader.

use super::{AllReduceJob, JOB_KEY};
use crate::error::{Error, Result};
use crate::session::Coordinator;
use client::Session;
use device::collective::AssemblyChange;
use graph::builder::CollectiveGroup;
use graph::{Bool8, Code, DType, Output, PartialShape, Scope, Tensor};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time for which one call to the assembly waits; calls are repeated.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time by which a step with a call to the assembly may outlast the call's patience.
const STEP_GRACE: Duration = Duration::from_secs(10);
/// The pause before a call to a leader that has failed is repeated.
const PAUSE: Duration = Duration::from_millis(500);
/// The time for which one call of the watch waits once a worker has finished. A step that lasts from one such call to
/// the next cannot end, because the finished worker does not run it, and is cancelled.
const FINISHED_PATIENCE: Duration = Duration::from_secs(1);
/// The time for which a finished worker that cannot reach the leader stays, because other workers may be in their last
/// step.
const LEADERLESS_GRACE: Duration = Duration::from_secs(3);
/// The number of epochs after which the keys of their groups repeat.
const EPOCH_KEYS: i64 = 1 << 20;

/// The workers that train together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The number of the epoch, which grows whenever the workers change.
    pub epoch: i64,
    /// This worker's position among the workers, from 0.
    pub rank: usize,
    /// The indices of the workers in ascending order.
    pub workers: Vec<usize>,
}

impl Membership {
    /// Returns the number of workers.
    pub fn size(&self) -> usize {
        self.workers.len()
    }

    /// Reads the answer of an assembly: the epoch, then the workers.
    fn of_answer(numbers: &[i64], worker: usize) -> Result<Membership> {
        let malformed = || {
            let text = format!("the assembly of worker {worker} answered {numbers:?}");
            client::Error::Status(proto::Status::new(Code::Internal, text))
        };
        let (&epoch, workers) = numbers.split_first().ok_or_else(malformed)?;
        let workers: Vec<usize> = workers.iter().filter_map(|&worker| usize::try_from(worker).ok()).collect();
        let rank = workers.iter().position(|other| *other == worker).ok_or_else(malformed)?;
        Ok(Membership { epoch, rank, workers })
    }
}

/// The nodes that call a job's assembly, and the group of the present epoch.
#[derive(Clone, Debug)]
pub(super) struct AssemblyNodes {
    /// The last epoch in which this worker has been, an `int64` scalar to be fed. All other inputs are fed too.
    epoch: Output,
    has_values: Output,
    known: Output,
    /// The last step of a worker whose training ends.
    step: Output,
    patience: Output,
    /// The next epoch and its workers, an `int64` vector.
    membership: Output,
    /// The kind of the present epoch's change, then the least of the last steps of finished workers: an `int64` vector.
    change: Output,
    /// The workers that continue training when this worker's training has ended, an `int64` vector.
    unfinished: Output,
    pub(super) group: CollectiveGroup,
}

impl AssemblyNodes {
    /// Adds the nodes of a worker, on its CPU.
    pub(super) fn build(job: AllReduceJob, host: &Scope) -> AssemblyNodes {
        let scope = host.name_scope("assembly");
        let fed = |name: &str, dtype: DType| scope.placeholder(name, dtype, PartialShape::scalar());
        let group = CollectiveGroup { size: fed("size", DType::Int32), key: fed("key", DType::Int32) };
        let [epoch, known, step] = ["epoch", "known", "step"].map(|name| fed(name, DType::Int64));
        let (has_values, patience) = (fed("has_values", DType::Bool), fed("patience", DType::Float));
        let [key, worker] = [JOB_KEY, job.worker as i32].map(|value| scope.constant(value));
        let [least, most] = [job.least, job.workers].map(|value| scope.constant(value as i32));
        let join = scope.op("_CollectiveAssemble").input(key).input(worker).input(least).input(most);
        let membership = join.input(has_values).input(epoch).input(patience).output();
        let watch = scope.op("_CollectiveWatch").input(key).input(worker).input(epoch).input(known);
        let change = watch.input(patience).output();
        let finish = scope.op("_CollectiveFinish").input(key).input(worker).input(epoch).input(step);
        let unfinished = finish.input(patience).output();
        AssemblyNodes { epoch, has_values, known, step, patience, membership, change, unfinished, group }
    }

    /// Returns the feeds that a step of an epoch needs.
    pub(super) fn feeds(&self, membership: &Membership) -> Vec<(Output, Tensor)> {
        let size = i32::try_from(membership.size()).unwrap_or(i32::MAX);
        let key = JOB_KEY - (membership.epoch.rem_euclid(EPOCH_KEYS) as i32);
        vec![(self.group.size, size.into()), (self.group.key, key.into())]
    }

    /// Waits for the next epoch after `epoch`, at most until the deadline. `missing` makes the error of the deadline
    /// from the time waited and the failure of the last call, which names the missing workers.
    fn assemble(
        &self,
        session: &Session,
        (worker, epoch, has_values): (usize, i64, bool),
        deadline: Duration,
        missing: impl Fn(Duration, Error) -> Error,
    ) -> Result<Membership> {
        let started = Instant::now();
        loop {
            let left = deadline.saturating_sub(started.elapsed()).max(Duration::from_millis(1));
            let patience = left.min(PATIENCE);
            let step = session.step().feed(self.epoch, epoch).feed(self.has_values, Bool8::from(has_values));
            let step = step.feed(self.patience, patience.as_secs_f32()).fetch(self.membership);
            match numbers(step.timeout(patience + STEP_GRACE).run()) {
                Ok(numbers) => return Membership::of_answer(&numbers, worker),
                Err(error) if error.code() != Code::DeadlineExceeded => return Err(error),
                Err(error) if started.elapsed() >= deadline => return Err(missing(started.elapsed(), error)),
                Err(error) => {
                    let left = deadline.saturating_sub(started.elapsed()).as_secs();
                    tracing::info!("worker {worker} waits for others, {left} s left: {error}");
                }
            }
        }
    }

    /// Waits until the change of the present epoch is greater than `known`, or for [`PATIENCE`]. Returns the change.
    fn watch(&self, session: &Session, epoch: i64, known: i64) -> Result<Change> {
        let patience = if known == FINISHED { FINISHED_PATIENCE } else { PATIENCE };
        let step = session.step().feed(self.epoch, epoch).feed(self.known, known).fetch(self.change);
        let step = step.feed(self.patience, patience.as_secs_f32());
        match numbers(step.timeout(patience + STEP_GRACE).run())?[..] {
            [kind, last_step] => Ok(Change { kind, last_step }),
            _ => Ok(Change { kind: NONE, last_step: 0 }),
        }
    }

    /// Tells the leader that this worker has finished after its last step, and waits until the others of its epoch have
    /// finished or left, at most for `patience`. Returns the workers that continue training.
    fn finish(
        &self,
        session: &Session,
        (epoch, last_step): (i64, i64),
        patience: Duration,
    ) -> Result<Vec<i64>> {
        let step = session.step().feed(self.epoch, epoch).feed(self.step, last_step).fetch(self.unfinished);
        let step = step.feed(self.patience, patience.as_secs_f32());
        numbers(step.timeout(patience + STEP_GRACE).run())
    }
}

/// A change because of which an epoch will end.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// The kind of the change, one of the numbers of [`AssemblyChange`].
    kind: i64,
    /// The least of the last steps of the finished workers; negative if no worker has finished.
    last_step: i64,
}

/// The numbers of kinds of changes.
const NONE: i64 = AssemblyChange::None as i64;
const FINISHED: i64 = AssemblyChange::Finished as i64;
const LEFT: i64 = AssemblyChange::Left as i64;
const OVER: i64 = AssemblyChange::Over as i64;

/// Returns the elements of the only fetched vector.
fn numbers(done: client::Result<client::StepOutcome>) -> Result<Vec<i64>> {
    Ok(done?.values.first().map_or(Ok(Vec::new()), Tensor::to_i64s)?)
}

/// A worker's participation in the epochs of its job, over all its sessions.
#[derive(Debug, Default)]
pub(crate) struct Attendance {
    membership: Mutex<Option<Membership>>,
    watch: Mutex<Option<Watch>>,
    steps: Arc<Steps>,
}

/// The progress of a worker's training steps, for the thread that watches the epoch.
#[derive(Debug, Default)]
struct Steps {
    /// The global step after the last step that has ended.
    done: AtomicI64,
    /// The number of steps that have begun. `ended` is the number of steps that have ended, with success or not.
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A guard of a training step in progress, which has ended when the guard is dropped.
#[derive(Debug)]
pub(crate) struct RunningStep {
    steps: Arc<Steps>,
}

impl Drop for RunningStep {
    fn drop(&mut self) {
        self.steps.ended.fetch_add(1, Ordering::AcqRel);
    }
}

impl Steps {
    /// Returns the number of the step in progress if it comes after `last_step`, the last step of a finished worker:
    /// such a step cannot end.
    fn stuck_after(&self, last_step: i64) -> Option<u64> {
        let begun = self.begun.load(Ordering::Acquire);
        let is_running = begun > self.ended.load(Ordering::Acquire);
        (is_running && self.done.load(Ordering::Acquire) >= last_step).then_some(begun)
    }
}

/// The thread that watches an epoch.
#[derive(Debug)]
struct Watch {
    state: Arc<WatchState>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct WatchState {
    stop: AtomicBool,
    /// True once a worker waits for the next epoch.
    is_over: AtomicBool,
}

impl Attendance {
    /// Returns the workers of the present epoch, or of the last one while this worker waits for the next; `None` before the
    /// first.
    pub(crate) fn membership(&self) -> Option<Membership> {
        self.membership.lock().clone()
    }

    /// Calls the job's assembly, waits for an epoch at most until the deadline, and then starts the thread that watches
    /// it.
    pub(super) fn join(
        &self,
        nodes: &AssemblyNodes,
        (session, coordinator): (&Arc<Session>, &Coordinator),
        (worker, has_values): (usize, bool),
        deadline: Duration,
        missing: impl Fn(Duration, Error) -> Error,
    ) -> Result<Membership> {
        self.stop();
        let last = self.membership.lock().as_ref().map_or(0, |membership| membership.epoch);
        let found = nodes.assemble(session, (worker, last, has_values), deadline, missing)?;
        tracing::info!("worker {worker} trains with workers {:?} in epoch {}", found.workers, found.epoch);
        *self.membership.lock() = Some(found.clone());
        let state = Arc::new(WatchState::default());
        let (nodes, session, coordinator) = (nodes.clone(), session.clone(), coordinator.clone());
        let (watched, epoch, steps) = (state.clone(), found.epoch, self.steps.clone());
        let body = move || watched.run(&nodes, &session, &coordinator, (epoch, &steps));
        let thread = thread::Builder::new().name("membership".to_owned()).spawn(body);
        let thread = thread.map_err(|e| Error::file("membership", &e))?;
        *self.watch.lock() = Some(Watch { state, thread });
        Ok(found)
    }

    /// Records that a training step begins. The step ends when the returned guard is dropped.
    pub(crate) fn begin_step(&self) -> RunningStep {
        self.steps.begun.fetch_add(1, Ordering::AcqRel);
        RunningStep { steps: self.steps.clone() }
    }

    /// Records the global step, after a training step or in a new session.
    pub(crate) fn set_global_step(&self, step: i64) {
        self.steps.done.store(step, Ordering::Release);
    }

    /// Ends this worker's training after its last step: waits at most for `grace` until the other workers of the epoch have
    /// ended theirs. A worker that cannot wait for the others ends nevertheless, because its own training is complete.
    pub(super) fn finish(
        &self,
        nodes: &AssemblyNodes,
        session: &Session,
        (worker, last_step): (usize, i64),
        grace: Duration,
    ) {
        let Some(Membership { epoch, workers, .. }) = self.membership() else { return };
        if workers.len() < 2 {
            return;
        }
        if let Some(watch) = &*self.watch.lock() {
            // The watching thread is stopped first, because it would treat the end of the other workers as their loss.
            watch.state.stop.store(true, Ordering::Release);
        }
        let started = Instant::now();
        loop {
            let left = grace.saturating_sub(started.elapsed());
            let patience = left.clamp(Duration::from_millis(1), PATIENCE);
            match nodes.finish(session, (epoch, last_step), patience) {
                Ok(unfinished) if unfinished.is_empty() => return,
                Ok(unfinished) => {
                    tracing::info!("worker {worker} ends after step {last_step}; {unfinished:?} train on");
                    return;
                }
                Err(error) if error.code() != Code::DeadlineExceeded => {
                    tracing::warn!("worker {worker} ends after step {last_step} without the leader: {error}");
                    thread::park_timeout(LEADERLESS_GRACE.min(left));
                    return;
                }
                Err(error) if started.elapsed() >= grace => {
                    let waited = started.elapsed().as_secs();
                    tracing::warn!("worker {worker} ends after step {last_step} and {waited} s: {error}");
                    return;
                }
                Err(error) => tracing::info!("worker {worker} has ended and waits: {error}"),
            }
        }
    }

    /// Checks, before a step, that no worker waits for the next epoch.
    ///
    /// # Errors
    /// `MembershipChanges`, after which this worker must call the assembly in a new session.
    pub(crate) fn check(&self) -> Result<()> {
        let is_over = |watch: &Watch| watch.state.is_over.load(Ordering::Acquire);
        match self.membership() {
            Some(Membership { epoch, .. }) if self.watch.lock().as_ref().is_some_and(is_over) => {
                Err(Error::MembershipChanges { epoch })
            }
            _ => Ok(()),
        }
    }

    /// Stops the watching thread, and waits for its end. It is called when the session has been closed, which ends the
    /// thread's call.
    pub(crate) fn stop(&self) {
        let Some(watch) = self.watch.lock().take() else { return };
        watch.state.stop.store(true, Ordering::Release);
        watch.thread.thread().unpark();
        // The result is ignored, because the thread returns nothing.
        let _ = watch.thread.join();
    }
}

impl WatchState {
    /// Watches an epoch until the thread is stopped or the leader does not know the epoch. The session is closed if a
    /// step of this worker cannot end: a while after a worker has left the epoch, or if another worker has finished
    /// before this worker's step.
    fn run(
        &self,
        nodes: &AssemblyNodes,
        session: &Session,
        coordinator: &Coordinator,
        (epoch, steps): (i64, &Steps),
    ) {
        let (mut known, mut stuck) = (NONE, None);
        while !self.stop.load(Ordering::Acquire) && !session.is_closed() {
            let change = match nodes.watch(session, epoch, known) {
                Ok(change) => change,
                Err(error) => {
                    tracing::debug!("epoch {epoch} is not watched: {error}");
                    thread::park_timeout(PAUSE);
                    continue;
                }
            };
            let Change { kind, last_step } = change;
            // A finished worker is no reason to end the epoch before the next step: if its input has ended, that step
            // fails on all workers.
            self.is_over.fetch_or(kind > NONE && kind != FINISHED, Ordering::AcqRel);
            if kind >= OVER {
                return;
            }
            let was_stuck = stuck.take();
            stuck = (kind == FINISHED).then(|| steps.stuck_after(last_step)).flatten();
            let cannot_end = stuck.is_some() && stuck == was_stuck;
            let may_close = !coordinator.should_stop() && !self.stop.load(Ordering::Acquire);
            if ((kind == LEFT && known == LEFT) || cannot_end) && may_close {
                coordinator.record_failure(Error::MembershipChanges { epoch });
                // An error is no failure, because the session is replaced in any case.
                let _ = session.close();
                return;
            }
            known = kind;
        }
    }
}
