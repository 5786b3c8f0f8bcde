//! From nothing to a session whose variables have values: the chief gives them, others wait.

use super::candidacy::Candidacy;
use super::replica_hooks::ReplicaHooks;
use super::{Coordinator, HookContext, Master, MonitoredConfig};
use crate::coordination::Coordination;
use crate::error::{Error, Result};
use crate::readiness::{missing, until_none};
use crate::saver::{Saver, latest_checkpoint};
use crate::sync::UpdateLock;
use crate::training::Training;
use client::Session;
use graph::{Code, Graph, Tensor};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// What is the same in all sessions of a replica.
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
}

impl Job {
    /// Opens a session, waits until the variables are ready, and lets the hooks begin what runs beside the steps. Tries
    /// again, for as long as a recovery may take, while tasks are missing or die. `was_ready` says whether the
    /// variables had values in an earlier session of this replica.
    ///
    /// # Errors
    /// What another session would not mend, or `GaveUp`.
    pub(super) fn open(&self, hooks: &mut ReplicaHooks, was_ready: bool) -> Result<Arc<Session>> {
        let started = Instant::now();
        let mut retries = 0;
        loop {
            let error = match self.try_open(hooks, was_ready) {
                Ok(session) => return Ok(session),
                Err(error) => error,
            };
            // Who opens a session gives up on missing tasks long before a job does.
            let is_late = matches!(error, Error::Client(_)) && error.code() == Code::DeadlineExceeded;
            if !error.is_transient() && !is_late {
                return Err(error);
            }
            let waited = started.elapsed();
            if waited >= self.config.recovery_deadline {
                return Err(Error::GaveUp { retries, waited, cause: Box::new(error) });
            }
            retries += 1;
            tracing::warn!("retry {retries}: {error}");
            thread::park_timeout(Duration::from_millis(100 << retries.min(4)));
        }
    }

    fn try_open(&self, hooks: &mut ReplicaHooks, was_ready: bool) -> Result<Arc<Session>> {
        let part = self.candidacy.stand()?;
        let mut options = self.config.session.clone();
        if options.config.operation_timeout_in_ms == 0 {
            // Steps that say nothing of a deadline, of hooks and of whoever makes ready, end too.
            let limit = self.config.step_deadline.max(self.config.ready_deadline);
            options.config.operation_timeout_in_ms = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
        }
        if let Some(epoch) = part.epoch {
            epoch.write(&mut options.config);
        }
        let session = Arc::new(match &self.master {
            Master::InProcess(server) => Session::on(server, self.graph.clone(), options)?,
            Master::At(target) => Session::connect(target, self.graph.clone(), options)?,
        });
        let context = self.context(&session);
        let started = self
            .candidacy
            .bind(&session)
            .and_then(|()| self.until_ready(&session, part.is_chief, was_ready))
            .and_then(|()| hooks.after_create_session(&context));
        if let Err(error) = started {
            let cause = self.cause(error);
            hooks.before_recovery(&context);
            return Err(cause);
        }
        Ok(session)
    }

    /// Why something failed in a session: what has ended it, if something did.
    pub(super) fn cause(&self, error: Error) -> Error {
        self.candidacy.change().or_else(|| self.coordinator.take_failure()).unwrap_or(error)
    }

    pub(super) fn context<'a>(&'a self, session: &'a Arc<Session>) -> HookContext<'a> {
        HookContext {
            session,
            coordinator: &self.coordinator,
            graph: &self.graph,
            is_chief: self.candidacy.is_chief(),
            global_step: self.training.global_step,
            lock: &self.lock,
        }
    }

    fn until_ready(&self, session: &Session, is_chief: bool, was_ready: bool) -> Result<()> {
        if is_chief {
            self.make_ready(session, was_ready)?;
            return self.join(session);
        }
        until_none(self.config.ready_deadline, || {
            let names = self.not_ready(session)?;
            if !names.is_empty() {
                return Ok(names);
            }
            match self.join(session) {
                // The chief has begun to make them ready again.
                Err(error) if error.is_absence() => Ok(vec![error.to_string()]),
                joined => joined.map(|()| names),
            }
        })
    }

    fn join(&self, session: &Session) -> Result<()> {
        match &self.training.coordination {
            Coordination::Free => Ok(()),
            Coordination::Sync(sync) => sync.join(session),
            Coordination::BoundedStaleness(bounded) => bounded.join(session),
        }
    }

    /// The chief's part. Variables that have values keep them, unless some of a synchronous job's have lost theirs:
    /// then all go back to the newest checkpoint. An update that was cut off is taken up again.
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
        let folder = self.config.checkpoint_folder.as_deref();
        let newest = match (&self.saver, folder) {
            (Some(saver), Some(folder)) => latest_checkpoint(folder)?.map(|prefix| (saver, prefix)),
            _ => None,
        };
        match newest {
            // What the others have done since stays.
            Some((saver, prefix)) if !coordination.is_synchronous() && missing.len() < probes.len() => {
                saver.restore_lost(session, &prefix, &missing)?;
            }
            Some((saver, prefix)) => saver.restore(session, &prefix)?,
            None if self.may_initialize(session, &missing, was_ready)? => {
                session.run(&[], &[], &[self.training.initialize])?;
            }
            // All that variables need is there; what replicas know of each other is not.
            None if missing.is_empty() => {}
            None => return Err(self.lost(missing)),
        }
        let missing = self::missing(session, probes)?;
        if !missing.is_empty() {
            return Err(self.lost(missing));
        }
        match coordination {
            Coordination::Free => Ok(()),
            Coordination::Sync(sync) => sync.open(session, &gone),
            Coordination::BoundedStaleness(bounded) if !bounded.is_open(session)? => {
                session.run(&[], &[], &[bounded.initialize])?;
                Ok(())
            }
            Coordination::BoundedStaleness(_) => Ok(()),
        }
    }

    fn lost(&self, names: Vec<String>) -> Error {
        let folder = self.config.checkpoint_folder.as_deref();
        let folder = folder.map_or("(no folder)".to_owned(), |f: &Path| f.display().to_string());
        Error::Lost { names, folder }
    }

    /// Whether there is nothing to lose: no variable has a value, or an initialisation was cut off before the first
    /// step.
    fn may_initialize(&self, session: &Session, missing: &[String], was_ready: bool) -> Result<bool> {
        if was_ready || missing.is_empty() {
            return Ok(false);
        }
        if missing.len() == self.training.probes.len() {
            return Ok(true);
        }
        if missing.iter().any(|name| name == "global_step") {
            return Ok(false);
        }
        let step = session.run(&[], &[self.training.global_step], &[])?;
        Ok(step.first().map(Tensor::item::<i64>).transpose()? == Some(0))
    }

    fn is_open(&self, session: &Session) -> Result<bool> {
        match &self.training.coordination {
            Coordination::Free => Ok(true),
            Coordination::Sync(_) if self.config.foreign_chief => Ok(true),
            Coordination::Sync(sync) => sync.is_open(session),
            Coordination::BoundedStaleness(bounded) => bounded.is_open(session),
        }
    }

    /// What the chief has not made ready.
    fn not_ready(&self, session: &Session) -> Result<Vec<String>> {
        let names = missing(session, &self.training.probes)?;
        if !names.is_empty() || self.is_open(session)? {
            return Ok(names);
        }
        Ok(vec!["what the replicas know of each other".to_owned()])
    }
}
