//! Opening of a session whose variables have values: the chief initialises or restores them, and other replicas
//! wait.

use super::candidacy::Candidacy;
use super::replica_hooks::ReplicaHooks;
use super::{Coordinator, HookContext, Master, MonitoredConfig};
use crate::all_reduce::{AllReduceReplica, Attendance, Meet, Membership, Position};
use crate::coordination::Coordination;
use crate::error::{Error, Result};
use crate::readiness::{missing, wait_until_none};
use crate::saver::{Saver, latest_checkpoint};
use crate::sync::UpdateLock;
use crate::training::Training;
use client::Session;
use graph::{Code, Graph, Tensor};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The pause of a replica of an all-reduce job before it meets the others again because no replica has values yet.
const MEETING_PAUSE: Duration = Duration::from_millis(20);

/// The state that all sessions of a replica share.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) master: Master,
    pub(super) graph: Graph,
    pub(super) training: Training,
    pub(super) saver: Option<Arc<Saver>>,
    pub(super) config: MonitoredConfig,
    pub(super) candidacy: Candidacy,
    pub(super) coordinator: Coordinator,
    pub(super) lock: UpdateLock,
    /// This worker's participation in the epochs of an all-reduce job.
    pub(super) attendance: Arc<Attendance>,
}

impl Job {
    /// Opens a session, waits until the variables have values, and runs the hooks' `after_create_session`. Tries again
    /// for at most the recovery deadline while tasks are missing or die. `was_ready` is true if the variables had
    /// values in an earlier session of this replica.
    ///
    /// # Errors
    /// Errors that another session would not fix, or `RetriesExhausted`.
    pub(super) fn open(&self, hooks: &mut ReplicaHooks, was_ready: bool) -> Result<Arc<Session>> {
        let started = Instant::now();
        let mut retries = 0;
        loop {
            let error = match self.try_open(hooks, was_ready) {
                Ok(session) => return Ok(session),
                Err(error) => error,
            };
            // Opening a session times out on missing tasks long before the recovery deadline, so a timeout is retried.
            let is_late = matches!(error, Error::Client(_)) && error.code() == Code::DeadlineExceeded;
            if !error.is_transient() && !is_late {
                return Err(error);
            }
            let waited = started.elapsed();
            if waited >= self.config.recovery_deadline {
                return Err(Error::RetriesExhausted { retries, waited, cause: Box::new(error) });
            }
            retries += 1;
            tracing::warn!("retry {retries}: {error}");
            thread::park_timeout(Duration::from_millis(100 << retries.min(4)));
        }
    }

    /// Opens a session once; see [`Job::open`].
    fn try_open(&self, hooks: &mut ReplicaHooks, was_ready: bool) -> Result<Arc<Session>> {
        let role = self.candidacy.campaign()?;
        let mut options = self.config.session.clone();
        if options.config.operation_timeout_in_ms == 0 {
            // Runs of the session that hooks and this module start without a deadline get this time limit.
            let limit = self.config.step_deadline.max(self.config.ready_deadline);
            options.config.operation_timeout_in_ms = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
        }
        if let Some(epoch) = role.epoch {
            epoch.write(&mut options.config);
        }
        let session = Arc::new(match &self.master {
            Master::InProcess(server) => Session::on_server(server, self.graph.clone(), options)?,
            Master::Remote(target) => Session::connect(target, self.graph.clone(), options)?,
        });
        let context = self.context(&session);
        let started = self
            .candidacy
            .bind_session(&session)
            .and_then(|()| self.until_ready(&session, role.is_chief, was_ready))
            .and_then(|()| self.attendance.membership().map_or(Ok(()), |m| hooks.on_membership(&context, &m)))
            .and_then(|()| hooks.after_create_session(&context));
        if let Err(error) = started {
            let cause = self.cause(error);
            hooks.before_recovery(&context);
            return Err(cause);
        }
        Ok(session)
    }

    /// Returns the reason for a failure in a session: the change of role or the failure of a thread that
    /// ended the session, or else `error`.
    pub(super) fn cause(&self, error: Error) -> Error {
        self.candidacy.role_change().or_else(|| self.coordinator.take_failure()).unwrap_or(error)
    }

    /// Returns the context of hooks in `session`.
    pub(super) fn context<'a>(&'a self, session: &'a Arc<Session>) -> HookContext<'a> {
        HookContext {
            session,
            coordinator: &self.coordinator,
            graph: &self.graph,
            is_chief: self.candidacy.is_chief(),
            global_step: self.training.global_step,
            replicates_variables: self.training.coordination.replicates_variables(),
            lock: &self.lock,
        }
    }

    /// Waits until the variables have values and this replica has joined the synchronous or bounded-staleness job; the
    /// chief initialises or restores them.
    fn until_ready(&self, session: &Arc<Session>, is_chief: bool, was_ready: bool) -> Result<()> {
        if let Coordination::AllReduce(replica) = &self.training.coordination {
            return self.meet(session, replica, is_chief, was_ready);
        }
        if is_chief {
            self.make_ready(session, was_ready)?;
            return self.join(session);
        }
        wait_until_none(self.config.ready_deadline, || {
            let names = self.not_ready(session)?;
            if !names.is_empty() {
                return Ok(names);
            }
            match self.join(session) {
                // The error means that the chief is restoring the variables again.
                Err(error) if error.is_missing_value() => Ok(vec![error.to_string()]),
                joined => joined.map(|()| names),
            }
        })
    }

    /// Gives this replica of an all-reduce job the variables of the most advanced one. If no replica has values, the
    /// chief restores or initialises its own variables and those on parameter servers.
    ///
    /// # Errors
    /// `VariablesLost` if no replica has values and the chief cannot restore them, `NotReady` if no replica is the chief.
    fn meet(
        &self,
        session: &Arc<Session>,
        replica: &AllReduceReplica,
        is_chief: bool,
        was_ready: bool,
    ) -> Result<()> {
        let (started, deadline) = (Instant::now(), self.config.ready_deadline);
        let mut lacking = self.lacking(session, replica)?;
        let mut position = self.position(session, replica, &lacking)?;
        let can_give = is_chief || matches!(position, Position::At(_));
        let place = (session, &self.coordinator);
        let found = replica.assemble(&self.attendance, place, can_give, deadline)?;
        let mut is_met = false;
        loop {
            let waits = is_met && started.elapsed() < deadline;
            let Some(met) = self.meet_once(session, replica, (position, &found), waits)? else { continue };
            is_met = true;
            match met {
                Meet::Done => return Ok(()),
                Meet::Lost => return Err(self.lost(lacking)),
                Meet::Torn => position = position.in_want_of_others(replica.worker),
                Meet::NoValues if is_chief => {
                    if self.give_values(session, replica, &lacking, was_ready)? {
                        lacking = self.lacking(session, replica)?;
                    }
                    position = match self.position(session, replica, &lacking)? {
                        Position::Nowhere => Position::Lost,
                        position => position.in_want_of_others(replica.worker),
                    };
                }
                Meet::NoValues if started.elapsed() >= deadline => {
                    return Err(Error::NotReady { waited: started.elapsed(), names: lacking });
                }
                Meet::NoValues => thread::park_timeout(MEETING_PAUSE),
            }
        }
    }

    /// Meets the replicas of an epoch once. Returns `None` if replicas are missing after some seconds and `waits` is
    /// true, because the chief, which had met this replica before, is restoring its variables.
    ///
    /// # Errors
    /// `MembershipChanges` and `MeetingOver` if the other replicas are lost or are in a later epoch.
    fn meet_once(
        &self,
        session: &Session,
        replica: &AllReduceReplica,
        (position, found): (Position, &Membership),
        waits: bool,
    ) -> Result<Option<Meet>> {
        let error = match replica.meet(session, position, found) {
            Err(error) if is_left(&error) => error,
            met => return met.map(Some),
        };
        self.attendance.check()?;
        if waits { Ok(None) } else { Err(Error::MeetingOver { cause: Box::new(error) }) }
    }

    /// Returns the names of the variables that have no values for this replica of an all-reduce job, or that do not
    /// have the values of its global step.
    fn lacking(&self, session: &Session, replica: &AllReduceReplica) -> Result<Vec<String>> {
        let mut names = missing(session, &self.training.probes)?;
        names.extend(replica.missing_counts(session)?);
        if !names.is_empty() {
            return Ok(names);
        }
        replica.parts_out_of_step(session, self.global_step(session)?)
    }

    /// Returns the position of a replica of an all-reduce job that lacks the values of some variables.
    fn position(
        &self,
        session: &Session,
        replica: &AllReduceReplica,
        lacking: &[String],
    ) -> Result<Position> {
        if !lacking.is_empty() {
            return Ok(Position::Nowhere);
        }
        replica.position(session, self.global_step(session)?)
    }

    /// Restores or initialises the variables of an all-reduce job, as the chief. Returns false if it can do neither.
    fn give_values(
        &self,
        session: &Session,
        replica: &AllReduceReplica,
        lacking: &[String],
        was_ready: bool,
    ) -> Result<bool> {
        if let Some((saver, prefix)) = self.newest_checkpoint()? {
            replica.replace_values(session, || saver.restore(session, &prefix))?;
        } else if self.can_initialize(session, lacking, was_ready)? {
            let initialize = || Ok(session.run(&[], &[], &[self.training.initialize]).map(drop)?);
            replica.replace_values(session, initialize)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Returns the global step, which has a value.
    fn global_step(&self, session: &Session) -> Result<i64> {
        let step = session.run(&[], &[self.training.global_step], &[])?;
        Ok(step.first().map_or(Ok(0), Tensor::item::<i64>)?)
    }

    /// Returns the path prefix of the newest checkpoint with the saver that restores it, if there is one.
    fn newest_checkpoint(&self) -> Result<Option<(&Saver, PathBuf)>> {
        match (&self.saver, self.config.checkpoint_folder.as_deref()) {
            (Some(saver), Some(folder)) => Ok(latest_checkpoint(folder)?.map(|prefix| (&**saver, prefix))),
            _ => Ok(None),
        }
    }

    /// Makes this replica join the job if the job is synchronous or has bounded staleness.
    fn join(&self, session: &Session) -> Result<()> {
        match &self.training.coordination {
            Coordination::Free | Coordination::AllReduce(_) => Ok(()),
            Coordination::Sync(sync) => sync.join(session),
            Coordination::BoundedStaleness(bounded) => bounded.join(session),
        }
    }

    /// Initialises or restores the variables, as the chief. Variables keep their values, unless some variables of a
    /// synchronous job have lost their values: then all are restored from the newest checkpoint. An interrupted
    /// synchronous update is resumed.
    fn make_ready(&self, session: &Session, was_ready: bool) -> Result<()> {
        let probes = &self.training.probes;
        let missing = missing(session, probes)?;
        let coordination = &self.training.coordination;
        if missing.is_empty() && self.is_open(session)? {
            if let Coordination::Sync(sync) = coordination {
                sync.take_over(session)?;
            }
            return Ok(());
        }
        let gone = match coordination {
            Coordination::Sync(sync) => sync.shut(session)?,
            _ => Vec::new(),
        };
        match self.newest_checkpoint()? {
            // Variables that still have values keep the updates made since the newest checkpoint.
            Some((saver, prefix)) if !coordination.is_synchronous() && missing.len() < probes.len() => {
                saver.restore_lost(session, &prefix, &missing)?;
            }
            Some((saver, prefix)) => saver.restore(session, &prefix)?,
            None if self.can_initialize(session, &missing, was_ready)? => {
                session.run(&[], &[], &[self.training.initialize])?;
            }
            // All variables have values; only the state that coordinates the replicas is missing, and is initialised
            // below.
            None if missing.is_empty() => {}
            None => return Err(self.lost(missing)),
        }
        let missing = self::missing(session, probes)?;
        if !missing.is_empty() {
            return Err(self.lost(missing));
        }
        match coordination {
            Coordination::Free | Coordination::AllReduce(_) => Ok(()),
            Coordination::Sync(sync) => sync.open(session, &gone),
            Coordination::BoundedStaleness(bounded) if !bounded.is_open(session)? => {
                session.run(&[], &[], &[bounded.initialize])?;
                Ok(())
            }
            Coordination::BoundedStaleness(_) => Ok(()),
        }
    }

    /// Returns the error `VariablesLost` for variables that cannot be restored.
    fn lost(&self, names: Vec<String>) -> Error {
        let folder = self.config.checkpoint_folder.as_deref();
        let folder = folder.map_or("(no folder)".to_owned(), |f: &Path| f.display().to_string());
        Error::VariablesLost { names, folder }
    }

    /// Returns whether initialisation loses no trained values: no variable has a value, or an earlier initialisation
    /// was interrupted before the first step.
    fn can_initialize(&self, session: &Session, missing: &[String], was_ready: bool) -> Result<bool> {
        if was_ready || missing.is_empty() {
            return Ok(false);
        }
        if self.training.probes.iter().all(|(name, _)| missing.contains(name)) {
            return Ok(true);
        }
        if missing.iter().any(|name| name == "global_step") {
            return Ok(false);
        }
        Ok(self.global_step(session)? == 0)
    }

    /// Returns whether the state that coordinates the replicas has been initialised.
    fn is_open(&self, session: &Session) -> Result<bool> {
        match &self.training.coordination {
            Coordination::Free | Coordination::AllReduce(_) => Ok(true),
            Coordination::Sync(_) if self.config.foreign_chief => Ok(true),
            Coordination::Sync(sync) => sync.is_open(session),
            Coordination::BoundedStaleness(bounded) => bounded.is_open(session),
        }
    }

    /// Returns the names of variables and other state that the chief has not initialised.
    fn not_ready(&self, session: &Session) -> Result<Vec<String>> {
        let names = missing(session, &self.training.probes)?;
        if !names.is_empty() || self.is_open(session)? {
            return Ok(names);
        }
        Ok(vec!["the coordination of the replicas".to_owned()])
    }
}

/// Returns whether a meeting has failed because workers of the epoch are missing: they are lost or in a later epoch.
fn is_left(error: &Error) -> bool {
    matches!(error, Error::Client(_))
        && matches!(error.code(), Code::DeadlineExceeded | Code::FailedPrecondition)
}
