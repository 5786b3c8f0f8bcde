//! The workers of an all-reduce job that train together, which may change from epoch to epoch. A worker that has opened a
//! session comes to the job's assembly at the leader of collectives, which begins an epoch. While a worker is in an epoch,
//! a thread watches for workers that wait for the next one.

use super::{AllReduceJob, JOB_KEY};
use crate::error::{Error, Result};
use crate::session::Coordinator;
use client::Session;
use device::collective::AssemblyChange;
use graph::builder::CollectiveGroup;
use graph::{Bool8, Code, DType, Output, PartialShape, Scope, Tensor};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time for which one call to the assembly waits; calls are repeated.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time by which a step with a call to the assembly may outlast the call's patience.
const STEP_GRACE: Duration = Duration::from_secs(10);
/// The pause before a call to a leader that has failed is repeated.
const PAUSE: Duration = Duration::from_millis(500);
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
    /// The last epoch in which this worker has been: an `int64` scalar to be fed, as are the other inputs.
    epoch: Output,
    has_values: Output,
    known: Output,
    patience: Output,
    /// The next epoch and its workers, an `int64` vector.
    membership: Output,
    /// A change of the present epoch, an `int64` vector of one element.
    change: Output,
    pub(super) group: CollectiveGroup,
}

impl AssemblyNodes {
    /// Adds the nodes of a worker, on its CPU.
    pub(super) fn build(job: AllReduceJob, host: &Scope) -> AssemblyNodes {
        let scope = host.name_scope("assembly");
        let fed = |name: &str, dtype: DType| scope.placeholder(name, dtype, PartialShape::scalar());
        let group = CollectiveGroup { size: fed("size", DType::Int32), key: fed("key", DType::Int32) };
        let (epoch, known) = (fed("epoch", DType::Int64), fed("known", DType::Int64));
        let (has_values, patience) = (fed("has_values", DType::Bool), fed("patience", DType::Float));
        let [key, worker] = [JOB_KEY, job.worker as i32].map(|value| scope.constant(value));
        let [least, most] = [job.least, job.workers].map(|value| scope.constant(value as i32));
        let join = scope.op("_CollectiveAssemble").input(key).input(worker).input(least).input(most);
        let membership = join.input(has_values).input(epoch).input(patience).output();
        let watch = scope.op("_CollectiveWatch").input(key).input(worker).input(epoch).input(known);
        let change = watch.input(patience).output();
        AssemblyNodes { epoch, has_values, known, patience, membership, change, group }
    }

    /// Returns the feeds of a step in an epoch.
    pub(super) fn feeds(&self, membership: &Membership) -> Vec<(Output, Tensor)> {
        let size = i32::try_from(membership.size()).unwrap_or(i32::MAX);
        let key = JOB_KEY - (membership.epoch.rem_euclid(EPOCH_KEYS) as i32);
        vec![(self.group.size, size.into()), (self.group.key, key.into())]
    }

    /// Waits for the next epoch after `epoch`, at most until the deadline. `missing` makes the error of the deadline from
    /// the time waited and the failure of the last call, which names the workers that have not come.
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

    /// Waits until the present epoch has a change beyond `known`, or for [`PATIENCE`]. Returns the change.
    fn watch(&self, session: &Session, epoch: i64, known: i64) -> Result<i64> {
        let step = session.step().feed(self.epoch, epoch).feed(self.known, known).fetch(self.change);
        let step = step.feed(self.patience, PATIENCE.as_secs_f32());
        Ok(numbers(step.timeout(PATIENCE + STEP_GRACE).run())?.first().copied().unwrap_or(NONE))
    }
}

/// The numbers of changes.
const NONE: i64 = AssemblyChange::None as i64;
const LEFT: i64 = AssemblyChange::Left as i64;
const OVER: i64 = AssemblyChange::Over as i64;

/// Returns the elements of the only fetched vector.
fn numbers(done: client::Result<client::StepOutcome>) -> Result<Vec<i64>> {
    Ok(done?.values.first().map_or(Ok(Vec::new()), Tensor::to_i64s)?)
}

/// A worker's part in the epochs of its job, over all its sessions.
#[derive(Debug, Default)]
pub(crate) struct Attendance {
    membership: Mutex<Option<Membership>>,
    watch: Mutex<Option<Watch>>,
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
    /// True once somebody waits for the next epoch.
    is_over: AtomicBool,
}

impl Attendance {
    /// Returns the workers of the present epoch, or of the last one while this worker waits for the next; `None` before the
    /// first.
    pub(crate) fn membership(&self) -> Option<Membership> {
        self.membership.lock().clone()
    }

    /// Comes to the job's assembly, waits for an epoch at most until the deadline, and watches it from then on.
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
        let (watched, epoch) = (state.clone(), found.epoch);
        let body = move || watched.run(&nodes, &session, &coordinator, epoch);
        let thread = thread::Builder::new().name("membership".to_owned()).spawn(body);
        let thread = thread.map_err(|e| Error::file("membership", &e))?;
        *self.watch.lock() = Some(Watch { state, thread });
        Ok(found)
    }

    /// Checks, before a step, that nobody waits for the next epoch.
    ///
    /// # Errors
    /// `MembershipChanges`, after which the worker comes to the assembly in a new session.
    pub(crate) fn check(&self) -> Result<()> {
        let is_over = |watch: &Watch| watch.state.is_over.load(Ordering::Acquire);
        match self.membership() {
            Some(Membership { epoch, .. }) if self.watch.lock().as_ref().is_some_and(is_over) => {
                Err(Error::MembershipChanges { epoch })
            }
            _ => Ok(()),
        }
    }

    /// Lets the thread that watches end. Called when the session has been closed, which ends the thread's step.
    pub(crate) fn stop(&self) {
        let Some(watch) = self.watch.lock().take() else { return };
        watch.state.stop.store(true, Ordering::Release);
        watch.thread.thread().unpark();
        // The thread has nothing to report.
        let _ = watch.thread.join();
    }
}

impl WatchState {
    /// Watches an epoch until it stops or the epoch is unknown. If a worker of the epoch has left it, so that a step of this
    /// worker cannot end, the session is closed after a while.
    fn run(&self, nodes: &AssemblyNodes, session: &Session, coordinator: &Coordinator, epoch: i64) {
        let mut known = NONE;
        while !self.stop.load(Ordering::Acquire) && !session.is_closed() {
            let change = match nodes.watch(session, epoch, known) {
                Ok(change) => change,
                Err(error) => {
                    tracing::debug!("epoch {epoch} is not watched: {error}");
                    thread::park_timeout(PAUSE);
                    continue;
                }
            };
            self.is_over.fetch_or(change > NONE, Ordering::AcqRel);
            if change >= OVER {
                return;
            }
            if change == LEFT && known == LEFT && !coordinator.should_stop() {
                coordinator.record_failure(Error::MembershipChanges { epoch });
                // An error is no failure, because the session is replaced in any case.
                let _ = session.close();
                return;
            }
            known = change;
        }
    }
}
