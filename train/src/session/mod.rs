//! A session that trains: it makes the variables ready or waits for who does, runs hooks around each step, and goes on
//! in a new session when a task has died.

mod candidacy;
mod coordinator;
mod hook;
pub mod hooks;
mod prepare;
mod queue_runner;
mod replica;
mod replica_hooks;
mod role;

pub use coordinator::Coordinator;
pub use hook::{Every, Hook, HookContext, RunArgs, RunValues};
pub use queue_runner::QueueRunner;
pub use role::Role;

use crate::error::{Error, Result};
use crate::saver::Saver;
use crate::sync::{SyncReport, UpdateLock};
use crate::training::Training;
use candidacy::Candidacy;
use client::{Server, Session, SessionOptions, StepOutcome};
use graph::{Code, Graph, NodeId, Output, Tensor};
use parking_lot::Mutex;
use prepare::Job;
use replica::ReplicaHook;
use replica_hooks::ReplicaHooks;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Where a session's master is.
#[derive(Clone, Debug)]
pub enum Master {
    /// In this process.
    InProcess(Arc<Server>),
    /// At `grpc://host:port`.
    At(String),
}

/// How a [`MonitoredSession`] behaves.
#[derive(Clone, Debug)]
pub struct MonitoredConfig {
    /// Whether this replica is the chief.
    pub role: Role,
    /// The chief is a client of TensorFlow: nobody aggregates but its queue runner.
    pub foreign_chief: bool,
    /// Where checkpoints are: the newest whole one is restored.
    pub checkpoint_folder: Option<PathBuf>,
    pub session: SessionOptions,
    /// How long replicas wait for the chief to make the variables ready.
    pub ready_deadline: Duration,
    /// How long a step may take, with the gradients that it waits for. Any other run of the session ends with this or
    /// [`MonitoredConfig::ready_deadline`], whichever is longer, unless `session` has an `operation_timeout_in_ms`.
    pub step_deadline: Duration,
    /// How long a job may take to begin while tasks are missing, and to go on when one has died.
    pub recovery_deadline: Duration,
    /// How long the chief waits at its end for other replicas to finish, and threads for their last step. Others wait as
    /// long for the chief to save the last step, or for [`MonitoredConfig::recovery_deadline`] if that is longer.
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

/// A training session.
pub struct MonitoredSession {
    job: Job,
    hooks: ReplicaHooks,
    report: Arc<Mutex<SyncReport>>,
    session: Arc<Session>,
    recoveries: u32,
    /// The global step after the last one that this replica did.
    last_step: i64,
    /// A step that may never go well has been given another session since the last one that went well.
    is_excused: bool,
    trouble: Option<Trouble>,
}

/// Sessions since something went well.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    since: Instant,
    retries: u32,
}

/// So many sessions are tried, whatever time they take.
const LEAST_RETRIES: u32 = 3;

impl MonitoredSession {
    /// Opens a session and makes the variables ready: from the newest checkpoint, or with their first values. A
    /// replica that is not the chief waits until they are, or until it becomes the chief.
    ///
    /// # Errors
    /// `NotReady` by the variables that the chief has not made ready in time, `Lost` by those that cannot be
    /// restored, and those of sessions and steps.
    pub fn new(
        master: Master,
        graph: Graph,
        training: Training,
        saver: Option<Arc<Saver>>,
        hooks: Vec<Box<dyn Hook>>,
        config: MonitoredConfig,
    ) -> Result<MonitoredSession> {
        let report: Arc<Mutex<SyncReport>> = Arc::default();
        let mut hooks = ReplicaHooks::new(ReplicaHook::new(&training, &config, report.clone()), hooks);
        let candidacy = Candidacy::new(&config.role)?;
        let (coordinator, lock) = (Coordinator::default(), UpdateLock::default());
        let job = Job { master, graph, training, saver, config, candidacy, coordinator, lock };
        let session = job.open(&mut hooks, false)?;
        Ok(MonitoredSession {
            job,
            hooks,
            report,
            session,
            recoveries: 0,
            last_step: 0,
            is_excused: false,
            trouble: None,
        })
    }

    /// Runs one step with what the hooks add to it. `None` once training is over: a hook has asked for it, or the
    /// input has ended. When a task has died the same step is run again in a new session; an asynchronous step that
    /// was cut off may have changed some variables before.
    ///
    /// # Errors
    /// The first failure of the step, of a hook or of a thread beside it that a new session does not mend.
    pub fn run(
        &mut self,
        feeds: &[(Output, Tensor)],
        fetches: &[Output],
        targets: &[NodeId],
    ) -> Result<Option<Vec<Tensor>>> {
        loop {
            if self.should_mend() {
                let cause = self.job.coordinator.take_failure();
                cause.map_or(Ok(()), |cause| self.recover(cause))?;
            }
            if self.job.coordinator.should_stop() {
                return self.job.coordinator.failure().map_or(Ok(None), Err);
            }
            let done = match self.job.coordinator.arrived() {
                Some(_) => self.settle().map(|()| None),
                None => self.run_once(feeds, fetches, targets).map(Some),
            };
            let error = match done {
                Ok(values) => {
                    (self.is_excused, self.trouble) = (false, None);
                    return Ok(values);
                }
                Err(error) => self.job.cause(error),
            };
            if error.code() == Code::OutOfRange {
                self.job.coordinator.request_stop();
            } else if error.is_transient() || self.may_excuse(&error) {
                self.recover(error)?;
            } else {
                self.job.coordinator.fail(error.clone());
                return Err(self.explained(error));
            }
        }
    }

    /// Asks for the end of training; [`MonitoredSession::run`] gives `None` from now on.
    pub fn request_stop(&self) {
        self.job.coordinator.request_stop();
    }

    pub fn should_stop(&self) -> bool {
        (self.job.coordinator.should_stop() && !self.should_mend())
            || self.job.coordinator.arrived().is_some()
    }

    /// Whether a thread beside the steps has failed of what a new session may mend.
    fn should_mend(&self) -> bool {
        let coordinator = &self.job.coordinator;
        coordinator.has_failed()
            && !coordinator.is_asked_to_stop()
            && coordinator.failure().is_some_and(|error| error.is_transient())
    }

    /// The session as it is now; it is another one after a task has died.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// How often training has gone on in a new session.
    pub fn recoveries(&self) -> u32 {
        self.recoveries
    }

    /// What has come of gradients so far, as this replica knows: its own, or all if it is the chief.
    pub fn sync_report(&self) -> SyncReport {
        self.report.lock().clone()
    }

    /// Ends training: hooks do what is left to do, threads end, the session is closed. Where training has failed, only
    /// the latter: nothing more is saved.
    ///
    /// # Errors
    /// The first failure of training, of a hook or a thread.
    pub fn finish(self) -> Result<()> {
        self.finish_with_report().map(|_| ())
    }

    /// As [`MonitoredSession::finish`]; gives what came of gradients until the last replica had finished.
    pub fn finish_with_report(mut self) -> Result<SyncReport> {
        if let Some(error) = self.job.coordinator.failure().filter(|error| !error.is_transient()) {
            self.job.coordinator.request_stop();
            self.hooks.before_recovery(&self.job.context(&self.session));
            if let Err(late @ Error::Threads { .. }) = self.job.coordinator.join(self.job.config.stop_grace) {
                tracing::warn!("{late}");
            }
            return Err(error);
        }
        // Whoever asks `should_stop` has left the loop before.
        if self.job.coordinator.arrived().is_some() && !self.job.coordinator.is_asked_to_stop() {
            self.through_recoveries(MonitoredSession::settle)?;
        }
        self.job.candidacy.rest();
        self.through_recoveries(MonitoredSession::end)?;
        self.job.candidacy.end();
        Ok(self.sync_report())
    }

    /// Ends something, in a new session where a task has died, or where another replica leads now.
    fn through_recoveries(&mut self, end: fn(&mut Self) -> Result<()>) -> Result<()> {
        while let Err(error) = end(self) {
            let error = self.job.cause(error);
            if !error.is_transient() && !self.may_excuse(&error) {
                return Err(error);
            }
            self.recover(error)?;
            self.check_step()?;
        }
        Ok(())
    }

    /// Who has left the loop is not there to do again what others have lost.
    fn check_step(&self) -> Result<()> {
        let step = self.job.context(&self.session).global_step()?;
        if step < self.last_step {
            return Err(Error::WentBack { from: self.last_step, to: step });
        }
        Ok(())
    }

    /// The job has come to its last step; training is over once that is safe.
    fn settle(&mut self) -> Result<()> {
        let context = self.job.context(&self.session);
        self.hooks.settle(&context)?;
        self.job.candidacy.rest();
        self.job.coordinator.request_stop();
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.job.coordinator.request_stop();
        let context = self.job.context(&self.session);
        let ended = self.hooks.end(&context);
        let joined = self.job.coordinator.join(self.job.config.stop_grace);
        ended.into_iter().chain([joined]).collect::<Result<()>>()?;
        match self.session.close().map_err(Error::from) {
            // What has gone needs no end.
            Err(error) if error.is_transient() => tracing::info!("the session had ended: {error}"),
            closed => closed?,
        }
        Ok(())
    }

    fn run_once(
        &mut self,
        feeds: &[(Output, Tensor)],
        fetches: &[Output],
        targets: &[NodeId],
    ) -> Result<Vec<Tensor>> {
        let context = self.job.context(&self.session);
        let mut asked = Vec::with_capacity(self.hooks.len());
        for hook in self.hooks.all() {
            asked.push(hook.before_run(&context)?);
        }
        let trains = targets.contains(&self.job.training.train);
        let step_done = trains.then_some(self.job.training.step_done);
        let mut step = self.session.step().timeout(self.job.config.step_deadline);
        for (output, value) in feeds.iter().chain(asked.iter().flat_map(|args| &args.feeds)) {
            step = step.feed(*output, value.clone());
        }
        let extra = asked.iter().flat_map(|args| &args.fetches);
        for output in fetches.iter().chain(&step_done).chain(extra) {
            step = step.fetch(*output);
        }
        for node in targets.iter().chain(asked.iter().flat_map(|args| &args.targets)) {
            step = step.target(*node);
        }
        if let Some(options) = asked.iter().find_map(|args| args.options.clone()) {
            step = step.options(options);
        }
        let StepOutcome { mut values, metadata } = step.run()?;
        let mut extra = values.split_off(fetches.len().min(values.len()));
        let global_step = match step_done {
            Some(_) if !extra.is_empty() => Some(extra.remove(0).item::<i64>()?),
            _ => None,
        };
        self.last_step = global_step.unwrap_or(self.last_step);
        let mut extra = extra.into_iter();
        for (hook, args) in self.hooks.all().zip(&asked) {
            let values: Vec<Tensor> = extra.by_ref().take(args.fetches.len()).collect();
            hook.after_run(
                &context,
                &RunValues { values: &values, global_step, metadata: metadata.as_ref() },
            )?;
        }
        Ok(values)
    }

    /// Whether a step of a synchronous job may have come while the chief was restoring the variables, which it takes
    /// away before: in a new session the replica waits until they are back.
    fn may_excuse(&mut self, error: &Error) -> bool {
        let may = error.is_absence() && self.job.training.coordination.is_synchronous();
        may && !std::mem::replace(&mut self.is_excused, true)
    }

    /// Goes on in a new session, where tasks that died are others now.
    fn recover(&mut self, cause: Error) -> Result<()> {
        self.bear(&cause)?;
        tracing::warn!("training goes on in a new session: {cause}");
        self.recoveries += 1;
        self.job.coordinator.depart();
        self.hooks.before_recovery(&self.job.context(&self.session));
        self.session = self.job.open(&mut self.hooks, true)?;
        Ok(())
    }

    /// Waits a little where one session after the other was of no use, and not for ever.
    fn bear(&mut self, cause: &Error) -> Result<()> {
        let now = Trouble { since: Instant::now(), retries: 0 };
        let Trouble { since, retries } = *self.trouble.get_or_insert(now);
        let waited = since.elapsed();
        if retries >= LEAST_RETRIES && waited >= self.job.config.recovery_deadline {
            return Err(Error::GaveUp { retries, waited, cause: Box::new(cause.clone()) });
        }
        if retries > 0 {
            thread::park_timeout(Duration::from_millis(50 << retries.min(5)));
        }
        self.trouble = Some(Trouble { since, retries: retries + 1 });
        Ok(())
    }

    /// A step that ran out of time, by the workers that it waited for.
    fn explained(&self, error: Error) -> Error {
        match &self.job.training.coordination {
            // What is of our own says itself what it waited for.
            crate::Coordination::Sync(sync)
                if matches!(error, Error::Client(_)) && error.code() == Code::DeadlineExceeded =>
            {
                let stalled = sync.stalled(&self.session, self.job.config.step_deadline);
                stalled.ok().flatten().unwrap_or(error)
            }
            _ => error,
        }
    }
}

impl Drop for MonitoredSession {
    fn drop(&mut self) {
        // Threads that still run see that it is over.
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
