//! The steps of a worker: running steps, steps that other tasks wait for, and ended steps. A step's state is
//! created by its first run on this worker or by the first task that requests or sends the step's tensors.

use crate::epochs::EpochGuard;
use crate::partial_run::End;
use crate::rendezvous::StepRendezvous;
use crate::session::Session;
use device::Error;
use device::activity::Activity;
use device::cancel::Cancellation;
use graph::{Code, TaskName};
use parking_lot::Mutex;
use proto::{RecentIds, Status};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Number of cleaned-up steps that are remembered, so that late requests are refused.
const MAX_REMEMBERED: usize = 14_000;
/// Number of sweeps for abandoned steps per retention period.
const SWEEPS_PER_RETENTION: u32 = 8;
/// Largest number of receives that wait for their tensors; more are refused.
const MAX_WAITING: usize = 1 << 20;

/// Time after which a running step is logged; it is logged again whenever its running time has doubled.
const SLOW_AFTER: Duration = Duration::from_secs(60);

/// Maximum number of steps that have not started and for which values have arrived; values for further steps are
/// dropped.
const MAX_EARLY: usize = 1 << 16;

/// The state of one step in this process.
#[derive(Debug)]
pub(crate) struct StepState {
    pub(crate) id: i64,
    pub(crate) rendezvous: Arc<StepRendezvous>,
    pub(crate) cancellation: Arc<Cancellation>,
    pub(crate) activity: Arc<Activity>,
    /// The channel for the result of the executors of a partial run; `None` until the first call of the partial run.
    pub(crate) partial_run: Mutex<Option<End>>,
    /// The time at which the step's first run on this worker began.
    began: OnceLock<Instant>,
    /// Number of log messages about the step's slowness.
    reports: AtomicU32,
    /// Number of the step's runs on this worker that have not ended.
    runs: AtomicUsize,
    /// Number of receives that wait for the step's tensors.
    waiting: AtomicUsize,
    /// The time at which the step's last run on this worker ended.
    ended: Mutex<Option<Instant>>,
}

impl StepState {
    fn new(id: i64) -> StepState {
        StepState {
            id,
            rendezvous: Arc::new(StepRendezvous::new(id)),
            cancellation: Arc::new(Cancellation::new()),
            activity: Arc::default(),
            partial_run: Mutex::default(),
            began: OnceLock::new(),
            reports: AtomicU32::new(0),
            runs: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            ended: Mutex::default(),
        }
    }

    /// Returns whether the step has run and its last run ended at least `retention` ago.
    fn is_old(&self, now: Instant, retention: Duration) -> bool {
        let is_over = self.has_started() && self.runs.load(Ordering::Relaxed) == 0;
        is_over && self.ended.lock().is_some_and(|ended| now.saturating_duration_since(ended) >= retention)
    }

    /// Returns the step's running time if a log message about its slowness is due, and counts the message as
    /// logged.
    fn take_slow_report(&self, now: Instant) -> Option<Duration> {
        let runs = self.runs.load(Ordering::Relaxed) > 0;
        let time = now.saturating_duration_since(*self.began.get().filter(|_| runs)?);
        let is_due = time >= SLOW_AFTER * 2u32.saturating_pow(self.reports.load(Ordering::Relaxed));
        is_due.then(|| {
            self.reports.fetch_add(1, Ordering::Relaxed);
            time
        })
    }

    /// Returns whether a run of the step on this worker has not ended.
    pub(crate) fn is_running(&self) -> bool {
        self.runs.load(Ordering::Relaxed) > 0
    }

    /// Returns whether the step lasts as long as a group of processes.
    pub(crate) fn is_of_group(&self) -> bool {
        self.reports.load(Ordering::Relaxed) == u32::BITS
    }

    pub(crate) fn has_started(&self) -> bool {
        self.began.get().is_some()
    }

    /// Cancels the step's runs and fails its receivers; the first reason is retained.
    pub(crate) fn cancel(&self, reason: Error) {
        self.cancellation.cancel(reason.clone());
        self.rendezvous.fail(&reason);
    }
}

/// All steps of a worker.
#[derive(Debug)]
pub(crate) struct Steps {
    task: TaskName,
    retention: Duration,
    table: Mutex<StepTable>,
    running: watch::Sender<usize>,
    /// Set while an asynchronous task runs that removes steps which do not start in time ([`sweep`]).
    has_sweeper: AtomicBool,
}

#[derive(Debug)]
struct StepTable {
    steps: FxHashMap<i64, Arc<StepState>>,
    /// Number of receives of all steps that wait for their tensors.
    waiting: usize,
    cleaned: RecentIds,
    /// The ids of steps that have not started on this worker and for which values have arrived, with the time
    /// of the first value.
    early: FxHashMap<i64, Instant>,
    next_sweep: Instant,
    closing: bool,
}

impl Steps {
    pub(crate) fn new(task: TaskName, retention: Duration) -> Steps {
        let table = StepTable {
            steps: FxHashMap::default(),
            waiting: 0,
            cleaned: RecentIds::new(MAX_REMEMBERED),
            early: FxHashMap::default(),
            next_sweep: Instant::now(),
            closing: false,
        };
        Steps {
            task,
            retention,
            table: Mutex::new(table),
            running: watch::Sender::new(0),
            has_sweeper: AtomicBool::new(false),
        }
    }

    /// Begins a run of this worker's part of a step. The run ends when the returned [`StepRun`] is dropped.
    ///
    /// # Errors
    /// `Aborted` if the step was cleaned up, `Unavailable` when the worker shuts down.
    pub(crate) fn begin(self: &Arc<Self>, id: i64, now: Instant) -> Result<StepRun, Status> {
        self.remove_old(now);
        let mut table = self.table.lock();
        if table.closing {
            return Err(Status::new(Code::Unavailable, format!("{} is shutting down", self.task)));
        }
        table.check_not_cleaned(id, &self.task)?;
        let step = table.steps.entry(id).or_insert_with(|| Arc::new(StepState::new(id))).clone();
        step.runs.fetch_add(1, Ordering::Relaxed);
        step.began.get_or_init(|| now);
        table.early.remove(&id);
        drop(table);
        self.running.send_modify(|n| *n += 1);
        Ok(StepRun { step, steps: self.clone(), _epoch_guard: None })
    }

    /// Registers a receive of a step's tensor, which may be requested before the step has started on this worker.
    ///
    /// # Errors
    /// `Aborted` if the step was cleaned up, `ResourceExhausted` if too many receives wait.
    pub(crate) fn wait(self: &Arc<Self>, id: i64) -> Result<StepWait, Status> {
        let mut table = self.table.lock();
        table.check_not_cleaned(id, &self.task)?;
        if table.waiting >= MAX_WAITING {
            let text = format!("{MAX_WAITING} receives wait on {}", self.task);
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        if table.closing && !table.steps.contains_key(&id) {
            return Err(Status::new(Code::Unavailable, format!("{} is shutting down", self.task)));
        }
        let step = table.steps.entry(id).or_insert_with(|| Arc::new(StepState::new(id))).clone();
        table.waiting += 1;
        step.waiting.fetch_add(1, Ordering::Relaxed);
        Ok(StepWait { step, steps: self.clone() })
    }

    /// Returns the step of a pushed value, which may arrive before the step has started on this worker. A
    /// step that does not start within `patience` is removed.
    ///
    /// # Errors
    /// `Aborted` if the step was cleaned up, `ResourceExhausted` if too many steps have not started.
    pub(crate) fn get_or_insert_early(
        self: &Arc<Self>,
        id: i64,
        runtime: &Handle,
        patience: Duration,
    ) -> Result<Arc<StepState>, Status> {
        let mut table = self.table.lock();
        if let Some(step) = table.steps.get(&id) {
            return Ok(step.clone());
        }
        table.check_not_cleaned(id, &self.task)?;
        if table.closing {
            return Err(Status::new(Code::Unavailable, format!("{} is shutting down", self.task)));
        }
        if table.early.len() >= MAX_EARLY {
            let text = format!("values of {MAX_EARLY} steps wait on {}, which have not started", self.task);
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        let step = Arc::new(StepState::new(id));
        table.steps.insert(id, step.clone());
        table.early.insert(id, Instant::now());
        drop(table);
        if !self.has_sweeper.swap(true, Ordering::AcqRel) {
            runtime.spawn(sweep(Arc::downgrade(self), patience));
        }
        Ok(step)
    }

    /// Returns the step if its state exists.
    pub(crate) fn get(&self, id: i64) -> Option<Arc<StepState>> {
        self.table.lock().steps.get(&id).cloned()
    }

    /// Calls `act` with each step.
    pub(crate) fn for_each(&self, act: impl FnMut(&Arc<StepState>)) {
        let steps: Vec<_> = self.table.lock().steps.values().cloned().collect();
        steps.iter().for_each(act);
    }

    /// Removes the steps that did not start within `patience` after their first value. Returns whether other
    /// steps that have not started remain.
    fn remove_early(&self, now: Instant, patience: Duration) -> bool {
        let (late, left): (Vec<_>, bool) = {
            let mut table = self.table.lock();
            let StepTable { steps, early, cleaned, .. } = &mut *table;
            let is_late = |_: &i64, since: &mut Instant| now.saturating_duration_since(*since) >= patience;
            let late: Vec<i64> = early.extract_if(is_late).map(|(id, _)| id).collect();
            for id in &late {
                cleaned.insert(*id);
            }
            (late.iter().filter_map(|id| steps.remove(id)).collect(), !early.is_empty())
        };
        for step in late {
            step.cancel(cleaned(step.id, &self.task));
        }
        left
    }

    /// Removes a step; its pending receives fail.
    pub(crate) fn cleanup(&self, id: i64) {
        let step = {
            let mut table = self.table.lock();
            table.cleaned.insert(id);
            table.early.remove(&id);
            table.steps.remove(&id)
        };
        if let Some(step) = step {
            step.cancel(cleaned(id, &self.task));
        }
    }

    /// Cancels all steps with this reason, and refuses new ones.
    pub(crate) fn cancel_all(&self, reason: &Error) {
        let steps: Vec<_> = {
            let mut table = self.table.lock();
            table.closing = true;
            table.steps.values().cloned().collect()
        };
        for step in steps {
            step.cancel(reason.clone());
        }
    }

    /// Refuses new steps.
    pub(crate) fn close(&self) {
        self.table.lock().closing = true;
    }

    /// Waits until no step runs on this worker.
    pub(crate) async fn idle(&self) {
        // The sender is a field of this object, so it cannot be dropped meanwhile.
        let _ = self.running.subscribe().wait_for(|n| *n == 0).await;
    }

    /// Returns whether a step was cleaned up on this worker.
    pub(crate) fn is_cleaned_up(&self, id: i64) -> bool {
        self.table.lock().cleaned.contains(id)
    }

    /// Returns whether this worker's part of a step runs.
    pub(crate) fn is_running(&self, id: i64) -> bool {
        self.table.lock().steps.get(&id).is_some_and(|step| step.is_running())
    }

    /// Returns the end of an error message that names the values which a step awaits from other tasks; empty
    /// if there are none.
    pub(crate) fn awaited(&self, id: i64) -> String {
        let step = self.table.lock().steps.get(&id).cloned();
        step.map(|step| step.rendezvous.awaited()).unwrap_or_default()
    }

    /// Returns the log messages that are due about slow steps: the step's running time, and the values that
    /// it awaits.
    pub(crate) fn take_slow_reports(&self, now: Instant) -> Vec<String> {
        let mut slow = Vec::new();
        self.for_each(|step| {
            let Some(time) = step.take_slow_report(now) else { return };
            let mut awaited = step.rendezvous.awaited();
            if awaited.is_empty() {
                awaited = "; it waits for nothing from other tasks".into();
            }
            let (id, task, seconds) = (step.id, &self.task, time.as_secs());
            slow.push(format!("Step {id} began {seconds} s ago on {task}, and has not ended{awaited}"));
        });
        slow
    }

    /// Returns the number of steps.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.lock().steps.len()
    }

    /// Removes the steps whose retention has ended, at most [`SWEEPS_PER_RETENTION`] times per retention period.
    fn remove_old(&self, now: Instant) {
        let mut old = Vec::new();
        {
            let mut table = self.table.lock();
            if now < table.next_sweep {
                return;
            }
            table.next_sweep = now + self.retention / SWEEPS_PER_RETENTION;
            old.extend(table.steps.extract_if(|_, step| step.is_old(now, self.retention)));
            for (id, _) in &old {
                table.cleaned.insert(*id);
            }
        }
        for (id, step) in old {
            step.cancel(cleaned(id, &self.task));
        }
    }

    /// Records the end of a run.
    fn run_ended(&self, step: &StepState) {
        {
            // The table's lock is held, because `begin` also counts runs under it.
            let _table = self.table.lock();
            if step.runs.fetch_sub(1, Ordering::Relaxed) == 1 {
                *step.ended.lock() = Some(Instant::now());
            }
        }
        self.running.send_modify(|n| *n -= 1);
    }

    /// Records the end of a receive. If the step has not started and has no values, the end of its last
    /// receive removes it.
    fn wait_ended(&self, step: &StepState) {
        let mut table = self.table.lock();
        table.waiting -= 1;
        if step.waiting.fetch_sub(1, Ordering::Relaxed) == 1
            && !step.has_started()
            && !table.early.contains_key(&step.id)
        {
            table.steps.remove(&step.id);
        }
    }
}

/// Removes the steps that do not start within `patience` after their first value, until no steps that have
/// not started remain.
async fn sweep(steps: Weak<Steps>, patience: Duration) {
    loop {
        tokio::time::sleep(patience / 4 + Duration::from_millis(1)).await;
        let Some(steps) = steps.upgrade() else { return };
        if !steps.remove_early(Instant::now(), patience) {
            steps.has_sweeper.store(false, Ordering::Release);
            // A step that was added before `has_sweeper` was cleared has started no sweep, so this sweep must
            // handle it.
            if !steps.remove_early(Instant::now(), patience) || steps.has_sweeper.swap(true, Ordering::AcqRel)
            {
                return;
            }
        }
    }
}

impl StepTable {
    fn check_not_cleaned(&self, id: i64, task: &TaskName) -> Result<(), Status> {
        if self.cleaned.contains(id) {
            let error = cleaned(id, task);
            return Err(Status::new(error.code(), error.to_string()).derived());
        }
        Ok(())
    }
}

fn cleaned(id: i64, task: &TaskName) -> Error {
    // The error is derived, because the task that cleaned the step up knows the cause.
    Error::new(Code::Aborted, format!("Step {id} was cleaned up on {task}.")).derived()
}

/// A run of this worker's part of a step, which counts as active until dropped.
#[derive(Debug)]
pub(crate) struct StepRun {
    pub(crate) step: Arc<StepState>,
    steps: Arc<Steps>,
    /// The guard that counts the step as running in its session's epoch, because a later epoch waits for its
    /// end.
    _epoch_guard: Option<EpochGuard>,
}

impl StepRun {
    /// Adds the run to its session's epoch.
    ///
    /// # Errors
    /// `Aborted` if the session's epoch has ended.
    pub(crate) fn within(mut self, session: &Session) -> Result<StepRun, Status> {
        self._epoch_guard = session.enter(&self.step)?;
        Ok(self)
    }

    /// Exempts the run from reports of slow steps, because it lasts as long as a group of processes.
    pub(crate) fn without_slow_reports(self) -> StepRun {
        self.step.reports.store(u32::BITS, Ordering::Relaxed);
        self
    }
}

impl Drop for StepRun {
    fn drop(&mut self) {
        self.steps.run_ended(&self.step);
    }
}

/// A receive of a step's tensor, which counts as waiting until dropped.
#[derive(Debug)]
pub(crate) struct StepWait {
    pub(crate) step: Arc<StepState>,
    steps: Arc<Steps>,
}

impl Drop for StepWait {
    fn drop(&mut self) {
        self.steps.wait_ended(&self.step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Arc<Steps> {
        Arc::new(Steps::new(TaskName::new("ps", 0), Duration::from_secs(60)))
    }

    #[test]
    fn a_step_created_by_receives_is_removed_with_the_last_of_them() -> Result<(), Status> {
        let steps = steps();
        let (a, b) = (steps.wait(1)?, steps.wait(1)?);
        drop(a);
        assert_eq!(steps.len(), 1);
        drop(b);
        assert_eq!((steps.len(), steps.table.lock().waiting), (0, 0));
        Ok(())
    }

    #[test]
    fn receives_and_runs_share_the_step() -> Result<(), Status> {
        let steps = steps();
        let wait = steps.wait(1)?;
        let run = steps.begin(1, Instant::now())?;
        assert!(Arc::ptr_eq(&wait.step, &run.step) && wait.step.has_started());
        drop((wait, run));
        assert_eq!(steps.len(), 1);
        steps.cleanup(1);
        assert_eq!(steps.len(), 0);
        let late = steps.wait(1).err().map(|s| (s.code, s.derived));
        assert_eq!(late, Some((Code::Aborted, true)));
        assert!(steps.begin(1, Instant::now()).is_err());
        Ok(())
    }

    #[tokio::test]
    async fn early_steps_are_removed_after_a_while() -> Result<(), Status> {
        let (steps, patience, runtime) = (steps(), Duration::from_secs(5), Handle::current());
        let early = steps.get_or_insert_early(1, &runtime, patience)?;
        let started = steps.get_or_insert_early(2, &runtime, patience)?;
        let _run = steps.begin(2, Instant::now())?;
        // The end of a receive does not remove a step that has values.
        drop(steps.wait(1)?);
        assert!(Arc::ptr_eq(&early, &steps.get_or_insert_early(1, &runtime, patience)?));
        assert!(steps.remove_early(Instant::now(), patience));
        assert!(!steps.remove_early(Instant::now() + patience, patience));
        assert!(
            steps.get_or_insert_early(1, &runtime, patience).is_err()
                && early.rendezvous.awaited().is_empty()
        );
        assert!(Arc::ptr_eq(&started, &steps.get_or_insert_early(2, &runtime, patience)?));
        Ok(())
    }

    #[test]
    fn a_slow_step_is_reported_less_and_less_often() -> Result<(), Status> {
        let (steps, start) = (steps(), Instant::now());
        let run = steps.begin(7, start)?;
        let reports = |seconds| steps.take_slow_reports(start + Duration::from_secs(seconds));
        assert!(reports(59).is_empty());
        let text = "Step 7 began 60 s ago on /job:ps/replica:0/task:0, and has not ended; it waits for nothing from other tasks";
        assert_eq!(reports(60), [text]);
        assert!(
            reports(119).is_empty()
                && reports(121).len() == 1
                && reports(239).is_empty()
                && reports(300).len() == 1
        );
        drop(run);
        assert!(reports(10_000).is_empty());
        Ok(())
    }

    #[test]
    fn abandoned_steps_are_removed_after_the_retention() -> Result<(), Status> {
        let steps = steps();
        drop(steps.begin(1, Instant::now())?);
        let long = steps.begin(2, Instant::now())?;
        let later = Instant::now() + Duration::from_secs(61);
        let _third = steps.begin(3, later)?;
        assert!(steps.wait(1).is_err());
        assert!(steps.wait(2).is_ok());
        drop(long);
        Ok(())
    }
}
