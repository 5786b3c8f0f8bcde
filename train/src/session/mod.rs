//! A training session: it initialises or restores the variables or waits for the chief to do so, runs hooks
//! around each step, and recovers in a new session when a task has died.

mod candidacy;
mod coordinator;
mod hook;
pub mod hooks;
mod prepare;
mod queue_runner;
mod replica_hook;
mod replica_hooks;
mod role;

pub use coordinator::Coordinator;
pub use hook::{Hook, HookContext, Period, RunArgs, RunValues};
pub use queue_runner::QueueRunner;
pub use role::Role;

use crate::all_reduce::{Attendance, Membership};
use crate::error::{Error, Result};
use crate::saver::Saver;
use crate::sync::{SyncReport, UpdateLock};
use crate::training::Training;
use candidacy::Candidacy;
use client::{Server, Session, SessionOptions, StepOutcome};
use graph::{Code, Graph, NodeId, Output, Tensor};
use parking_lot::Mutex;
use prepare::Job;
use replica_hook::ReplicaHook;
use replica_hooks::ReplicaHooks;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The server that is the master of a training session.
#[derive(Clone, Debug)]
pub enum Master {
    /// A server in this process.
    InProcess(Arc<Server>),
    /// A server at `grpc://host:port`.
    Remote(String),
}

/// The configuration of a [`MonitoredSession`].
#[derive(Clone, Debug)]
pub struct MonitoredConfig {
    /// The role of this replica: chief, worker, or elected.
    pub role: Role,
    /// Set when the chief is a TensorFlow client, whose queue runner aggregates the gradients.
    pub foreign_chief: bool,
    /// The folder of checkpoints; the newest complete one is restored.
    pub checkpoint_folder: Option<PathBuf>,
    /// The options of the client sessions that train.
    pub session: SessionOptions,
    /// The longest time that replicas wait for the chief to initialise or restore the variables.
    pub ready_deadline: Duration,
    /// The longest time that a step may take, including the wait for gradients. The time limit of all other runs of the
    /// session is the longer one of `step_deadline` and [`MonitoredConfig::ready_deadline`], unless `session` has an
    /// `operation_timeout_in_ms`.
    pub step_deadline: Duration,
    /// The longest time for starting while tasks are missing, and for recovering after a task has died.
    pub recovery_deadline: Duration,
    /// The longest time that the chief waits at its end for other replicas to finish, and for threads to end. Other
    /// replicas wait for the chief to save the last step for `stop_grace` or [`MonitoredConfig::recovery_deadline`],
    /// whichever is longer. In an all-reduce job each replica waits for all others, at most for `stop_grace`.
    pub stop_grace: Duration,
}

impl Default for MonitoredConfig {
    fn default() -> MonitoredConfig {
        MonitoredConfig {
            role: Role::Chief,
            foreign_chief: false,
            checkpoint_folder: None,
            session: SessionOptions::default(),
            ready_deadline: Duration::from_secs(300),
            step_deadline: Duration::from_secs(600),
            recovery_deadline: Duration::from_secs(300),
            stop_grace: Duration::from_secs(120),
        }
    }
}

/// A session that trains: it runs hooks around each step, and recovers in a new client session when a task has died.
pub struct MonitoredSession {
    job: Job,
    hooks: ReplicaHooks,
    report: Arc<Mutex<SyncReport>>,
    session: Arc<Session>,
    recoveries: u32,
    /// The global step after the step that this replica ran last.
    last_step: i64,
    /// Set when a step has been retried because a variable had no value; cleared when a step succeeds.
    has_retried_missing_value: bool,
    retry_state: Option<RetryState>,
}

/// The number of recoveries since the last step that succeeded, and the time when the first of them began.
#[derive(Clone, Copy, Debug)]
struct RetryState {
    since: Instant,
    retries: u32,
}

/// The smallest number of new sessions that are tried before training fails, even after the recovery deadline.
const LEAST_RETRIES: u32 = 3;

impl MonitoredSession {
    /// Opens a session, and restores the variables from the newest checkpoint or initialises them. A replica
    /// that is not the chief waits until the variables have values, or until it becomes the chief.
    ///
    /// # Errors
    /// `NotReady` with the variables that the chief has not initialised in time, `VariablesLost` with those that
    /// cannot be restored, and errors of sessions and steps.
    pub fn new(
        master: Master,
        graph: Graph,
        training: Training,
        saver: Option<Arc<Saver>>,
        hooks: Vec<Box<dyn Hook>>,
        config: MonitoredConfig,
    ) -> Result<MonitoredSession> {
        let report: Arc<Mutex<SyncReport>> = Arc::default();
        let attendance = Arc::<Attendance>::default();
        let replica_hook = ReplicaHook::new(&training, &config, report.clone(), attendance.clone());
        let mut hooks = ReplicaHooks::new(replica_hook, hooks);
        let candidacy = Candidacy::new(&config.role)?;
        let (coordinator, lock) = (Coordinator::default(), UpdateLock::default());
        let job = Job { master, graph, training, saver, config, candidacy, coordinator, lock, attendance };
        let session = job.open(&mut hooks, false)?;
        Ok(MonitoredSession {
            job,
            hooks,
            report,
            session,
            recoveries: 0,
            last_step: 0,
            has_retried_missing_value: false,
            retry_state: None,
        })
    }

    /// Runs one step, with the feeds, fetches and targets of the hooks. Returns `None` when training is over:
    /// a hook has requested it, or the input has ended. After the death of a task, the step is run again in a
    /// new session; an asynchronous step that was interrupted may have updated some variables before.
    ///
    /// # Errors
    /// The first failure of the step, of a hook or of a thread that a new session does not fix.
    pub fn run(
        &mut self,
        feeds: &[(Output, Tensor)],
        fetches: &[Output],
        targets: &[NodeId],
    ) -> Result<Option<Vec<Tensor>>> {
        loop {
            if self.should_recover() {
                let cause = self.job.coordinator.take_failure();
                cause.map_or(Ok(()), |cause| self.recover(cause))?;
            }
            if self.job.coordinator.should_stop() {
                return self.job.coordinator.failure().map_or(Ok(None), Err);
            }
            let started = Instant::now();
            let done = match self.job.coordinator.reached_last_step() {
                Some(_) => self.finish_job().map(|()| None),
                None => self.run_once(feeds, fetches, targets).map(Some),
            };
            let error = match done {
                Ok(values) => {
                    (self.has_retried_missing_value, self.retry_state) = (false, None);
                    return Ok(values);
                }
                Err(error) => self.job.cause(error),
            };
            if error.code() == Code::OutOfRange {
                self.job.coordinator.request_stop();
            } else if error.is_transient() || self.take_missing_value_retry(&error) {
                self.recover(error)?;
            } else {
                self.job.coordinator.fail(error.clone());
                return Err(self.explain_timeout(error, started));
            }
        }
    }

    /// Requests the end of training; [`MonitoredSession::run`] returns `None` from then on.
    pub fn request_stop(&self) {
        self.job.coordinator.request_stop();
    }

    /// Returns whether training is to end: by request, because of a failure, or because the job has reached
    /// its last step.
    pub fn should_stop(&self) -> bool {
        (self.job.coordinator.should_stop() && !self.should_recover())
            || self.job.coordinator.reached_last_step().is_some()
    }

    /// Returns whether a thread has failed with an error that a new session may fix.
    fn should_recover(&self) -> bool {
        let coordinator = &self.job.coordinator;
        coordinator.has_failed()
            && !coordinator.is_asked_to_stop()
            && coordinator.failure().is_some_and(|error| error.is_transient())
    }

    /// Returns the current session, which is replaced when training recovers.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns the number of times that training has recovered in a new session.
    pub fn recoveries(&self) -> u32 {
        self.recoveries
    }

    /// Returns the workers that train together in an all-reduce job; `None` for other strategies. A recovery changes them.
    pub fn membership(&self) -> Option<Membership> {
        self.job.attendance.membership()
    }

    /// Returns the counts of updates and dropped gradients so far, as known to this replica: its own
    /// gradients, or those of all workers if it is the chief.
    pub fn sync_report(&self) -> SyncReport {
        self.report.lock().clone()
    }

    /// Ends training: runs [`Hook::end`] of all hooks, waits for the threads, and closes the session. After a failure
    /// of training `Hook::end` is not run, so nothing more is saved.
    ///
    /// # Errors
    /// The first failure of training, of a hook or of a thread.
    pub fn finish(self) -> Result<()> {
        self.finish_with_report().map(|_| ())
    }

    /// Ends training like [`MonitoredSession::finish`], and returns the counts of updates and dropped
    /// gradients up to the end of the last replica.
    pub fn finish_with_report(mut self) -> Result<SyncReport> {
        if let Some(error) = self.job.coordinator.failure().filter(|error| !error.is_transient()) {
            self.job.coordinator.request_stop();
            self.hooks.before_recovery(&self.job.context(&self.session));
            if let Err(late @ Error::ThreadsStillRunning { .. }) =
                self.job.coordinator.join(self.job.config.stop_grace)
            {
                tracing::warn!("{late}");
            }
            return Err(error);
        }
        // If the training loop polls `should_stop`, `run` is not called after the last step, so the job is finished
        // here.
        if self.job.coordinator.reached_last_step().is_some() && !self.job.coordinator.is_asked_to_stop() {
            self.with_recovery(MonitoredSession::finish_job)?;
        }
        self.job.candidacy.stop_campaigning();
        self.with_recovery(MonitoredSession::end)?;
        self.job.candidacy.end();
        Ok(self.sync_report())
    }

    /// Runs `end`, and repeats it in a new session if a task has died or another replica has become the chief.
    fn with_recovery(&mut self, end: fn(&mut Self) -> Result<()>) -> Result<()> {
        while let Err(error) = end(self) {
            let error = self.job.cause(error);
            if !error.is_transient() && !self.take_missing_value_retry(&error) {
                return Err(error);
            }
            self.recover(error)?;
            self.check_step()?;
        }
        Ok(())
    }

    /// Returns an error if the job has gone back to an earlier step: a replica that has left its training loop cannot
    /// repeat the lost steps.
    fn check_step(&self) -> Result<()> {
        let step = self.job.context(&self.session).global_step()?;
        if step < self.last_step {
            return Err(Error::StepsLost { from: self.last_step, to: step });
        }
        Ok(())
    }

    /// Ends training after the job's last step, once its results are saved.
    fn finish_job(&mut self) -> Result<()> {
        let context = self.job.context(&self.session);
        self.hooks.after_last_step(&context)?;
        self.job.candidacy.stop_campaigning();
        self.job.coordinator.request_stop();
        Ok(())
    }

    /// Runs [`Hook::end`] of all hooks, waits for the threads, and closes the session.
    fn end(&mut self) -> Result<()> {
        self.job.coordinator.request_stop();
        let context = self.job.context(&self.session);
        let ended = self.hooks.end(&context);
        let joined = self.job.coordinator.join(self.job.config.stop_grace);
        ended.into_iter().chain([joined]).collect::<Result<()>>()?;
        match self.session.close().map_err(Error::from) {
            // A session whose master or worker has died need not be closed.
            Err(error) if error.is_transient() => tracing::info!("the session had ended: {error}"),
            closed => closed?,
        }
        Ok(())
    }

    /// Runs one step together with the feeds, fetches and targets of the hooks, and then [`Hook::after_run`] of each
    /// hook.
    fn run_once(
        &mut self,
        feeds: &[(Output, Tensor)],
        fetches: &[Output],
        targets: &[NodeId],
    ) -> Result<Vec<Tensor>> {
        let context = self.job.context(&self.session);
        let mut hook_args = Vec::with_capacity(self.hooks.len());
        for hook in self.hooks.all() {
            hook_args.push(hook.before_run(&context)?);
        }
        let trains = targets.contains(&self.job.training.train);
        let step_done = trains.then_some(self.job.training.step_done);
        let mut step = self.session.step().timeout(self.job.config.step_deadline);
        for (output, value) in feeds.iter().chain(hook_args.iter().flat_map(|args| &args.feeds)) {
            step = step.feed(*output, value.clone());
        }
        let extra = hook_args.iter().flat_map(|args| &args.fetches);
        for output in fetches.iter().chain(&step_done).chain(extra) {
            step = step.fetch(*output);
        }
        for node in targets.iter().chain(hook_args.iter().flat_map(|args| &args.targets)) {
            step = step.target(*node);
        }
        if let Some(options) = hook_args.iter().find_map(|args| args.options.clone()) {
            step = step.options(options);
        }
        let running = trains.then(|| self.job.attendance.begin_step());
        let StepOutcome { mut values, metadata } = step.run()?;
        let mut extra = values.split_off(fetches.len().min(values.len()));
        let global_step = match step_done {
            Some(_) if !extra.is_empty() => Some(extra.remove(0).item::<i64>()?),
            _ => None,
        };
        self.last_step = global_step.unwrap_or(self.last_step);
        global_step.into_iter().for_each(|step| self.job.attendance.set_global_step(step));
        drop(running);
        let mut extra = extra.into_iter();
        for (hook, args) in self.hooks.all().zip(&hook_args) {
            let values: Vec<Tensor> = extra.by_ref().take(args.fetches.len()).collect();
            hook.after_run(
                &context,
                &RunValues { values: &values, global_step, metadata: metadata.as_ref() },
            )?;
        }
        Ok(values)
    }

    /// Takes the only retry of a synchronous step that found a variable without a value. The chief destroys variables
    /// before it restores them, so a replica that retries waits in a new session until the variables have values.
    /// Returns whether the step may be retried.
    fn take_missing_value_retry(&mut self, error: &Error) -> bool {
        let may = error.is_missing_value() && self.job.training.coordination.is_synchronous();
        may && !std::mem::replace(&mut self.has_retried_missing_value, true)
    }

    /// Replaces the session by a new one, which connects to restarted tasks.
    fn recover(&mut self, cause: Error) -> Result<()> {
        self.count_retry(&cause)?;
        tracing::warn!("training goes on in a new session: {cause}");
        self.recoveries += 1;
        self.job.coordinator.clear_last_step();
        self.hooks.before_recovery(&self.job.context(&self.session));
        self.session = self.job.open(&mut self.hooks, true)?;
        Ok(())
    }

    /// Counts a retry and pauses before it. Returns `RetriesExhausted` if retries have lasted longer than the recovery
    /// deadline.
    fn count_retry(&mut self, cause: &Error) -> Result<()> {
        let now = RetryState { since: Instant::now(), retries: 0 };
        let RetryState { since, retries } = *self.retry_state.get_or_insert(now);
        let waited = since.elapsed();
        if retries >= LEAST_RETRIES && waited >= self.job.config.recovery_deadline {
            return Err(Error::RetriesExhausted { retries, waited, cause: Box::new(cause.clone()) });
        }
        if retries > 0 {
            thread::park_timeout(Duration::from_millis(50 << retries.min(5)));
        }
        self.retry_state = Some(RetryState { since, retries: retries + 1 });
        Ok(())
    }

    /// Returns the error `Stalled` or `WorkersMissing`, with the workers that the step waited for, in place of the timeout
    /// of a synchronous step that has `started`; returns other errors unchanged.
    fn explain_timeout(&self, error: Error, started: Instant) -> Error {
        match &self.job.training.coordination {
            // Only an error of the client is explained: errors of this crate already name the cause of the timeout.
            crate::Coordination::Sync(sync)
                if matches!(error, Error::Client(_)) && error.code() == Code::DeadlineExceeded =>
            {
                let stalled = sync.stalled(&self.session, self.job.config.step_deadline);
                stalled.ok().flatten().unwrap_or(error)
            }
            crate::Coordination::AllReduce(replica)
                if matches!(error, Error::Client(_)) && error.code() == Code::DeadlineExceeded =>
            {
                replica.missing("send their gradients", started.elapsed(), error)
            }
            _ => error,
        }
    }
}

impl Drop for MonitoredSession {
    fn drop(&mut self) {
        // Threads that still run end when they find that a stop is requested.
        self.job.coordinator.request_stop();
        self.hooks.before_recovery(&self.job.context(&self.session));
    }
}

impl fmt::Debug for MonitoredSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "MonitoredSession({:?}, {} hooks, {:?})",
            self.session,
            self.hooks.len(),
            self.job.config.role
        )
    }
}
