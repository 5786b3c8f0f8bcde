//! The candidacy of a replica for the chief: it campaigns whenever it opens a session, renews its lease, and
//! closes the session when its role changes.

use super::Role;
use crate::election::LeaderStore;
use crate::error::{Error, Result};
use client::Session;
use parking_lot::{Condvar, Mutex};
use proto::Epoch;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The number of polls of the store per lease, as long as the pause between them is within `SHORTEST_PAUSE` and
/// `LONGEST_PAUSE`.
const POLLS_PER_LEASE: u32 = 20;
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The shortest time that [`Candidacy::end`] waits for its thread; the wait lasts for a lease if a lease is longer.
const SHORTEST_END_WAIT: Duration = Duration::from_secs(5);

/// The role of a replica in one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SessionRole {
    /// True if this replica is the chief.
    pub(super) is_chief: bool,
    /// The epoch that an elected chief sends with its requests; `None` for all other replicas.
    pub(super) epoch: Option<Epoch>,
}

/// The source of a replica's role: the configuration or an election.
#[derive(Debug)]
pub(super) enum Candidacy {
    /// The role is configured.
    Fixed { is_chief: bool },
    /// The chief is elected; the thread renews the lease while this replica leads, and campaigns otherwise.
    Elected { watcher: Arc<ElectionWatcher>, thread: Option<JoinHandle<()>> },
}

#[derive(Debug)]
pub(super) struct ElectionWatcher {
    store: Arc<dyn LeaderStore>,
    /// The lock that allows one call to the store at a time. It is locked before `state`; `state` stays unlocked during
    /// a call, so that no step waits for the store.
    store_lock: Mutex<()>,
    state: Mutex<ElectionState>,
    changed: Condvar,
}

/// The state of a replica's candidacy in an election.
#[derive(Debug, Default)]
struct ElectionState {
    /// The term in which this replica leads, if it does.
    term: Option<i64>,
    /// The time at which the last call began in which the store confirmed `term`.
    confirmed_at: Option<Instant>,
    /// This replica's term when the current session was opened; `None` if it did not lead then.
    session_term: Option<i64>,
    session: Weak<Session>,
    /// The change of role that made the thread close the session.
    closed_because: Option<Error>,
    /// Set while this replica tries to become the leader.
    is_candidate: bool,
    /// Set when the thread is to end.
    is_ending: bool,
}

impl Candidacy {
    /// Starts the candidacy for a role, with a thread if the chief is elected.
    pub(super) fn new(role: &Role) -> Result<Candidacy> {
        let store = match role {
            Role::Chief => return Ok(Candidacy::Fixed { is_chief: true }),
            Role::Worker => return Ok(Candidacy::Fixed { is_chief: false }),
            Role::Elected(store) => store.clone(),
        };
        let watcher = Arc::new(ElectionWatcher {
            store,
            store_lock: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let watching = watcher.clone();
        let thread = thread::Builder::new().name("candidacy".to_owned()).spawn(move || watching.watch());
        let thread = thread.map_err(|e| Error::file("candidacy", &e))?;
        Ok(Candidacy::Elected { watcher, thread: Some(thread) })
    }

    /// Campaigns, if the chief is elected, and returns this replica's role in the next session. Each session of a chief
    /// has its own term, so that workers refuse delayed requests of an earlier session.
    pub(super) fn campaign(&self) -> Result<SessionRole> {
        let Candidacy::Elected { watcher, .. } = self else {
            return Ok(SessionRole { is_chief: self.is_chief(), epoch: None });
        };
        let _guard = watcher.store_lock.lock();
        let asked_at = Instant::now();
        let term = watcher.store.campaign()?;
        let mut state = watcher.state.lock();
        *state = ElectionState {
            term,
            confirmed_at: Some(asked_at),
            session_term: term,
            is_candidate: true,
            ..ElectionState::default()
        };
        let name = watcher.store.name();
        let epoch = state.term.map(|number| Epoch { name: name.to_owned(), number });
        if let Some(epoch) = &epoch {
            tracing::info!("this replica leads: {epoch}");
        }
        Ok(SessionRole { is_chief: epoch.is_some(), epoch })
    }

    /// Binds the candidacy to a session, which is closed when the replica's role changes.
    ///
    /// # Errors
    /// `Elected` or `Deposed` if the role has already changed.
    pub(super) fn bind_session(&self, session: &Arc<Session>) -> Result<()> {
        if let Candidacy::Elected { watcher, .. } = self {
            watcher.state.lock().session = Arc::downgrade(session);
        }
        self.role_change().map_or(Ok(()), Err)
    }

    /// Returns whether this replica is the chief in the current session.
    pub(super) fn is_chief(&self) -> bool {
        match self {
            Candidacy::Fixed { is_chief } => *is_chief,
            Candidacy::Elected { watcher, .. } => watcher.state.lock().session_term.is_some(),
        }
    }

    /// Returns the change of this replica's role since the session was opened, which is the reason why the
    /// session was closed.
    pub(super) fn role_change(&self) -> Option<Error> {
        let Candidacy::Elected { watcher, .. } = self else { return None };
        let state = watcher.state.lock();
        state.closed_because.clone().or_else(|| watcher.role_change(&state))
    }

    /// Stops campaigning, so that another replica can become the chief when this replica has finished.
    pub(super) fn stop_campaigning(&self) {
        if let Candidacy::Elected { watcher, .. } = self {
            watcher.state.lock().is_candidate = false;
        }
    }

    /// Ends the thread and this replica's leadership. A failure of the store is only logged, because the lease expires.
    pub(super) fn end(&mut self) {
        let Candidacy::Elected { watcher, thread } = self else { return };
        watcher.state.lock().is_ending = true;
        watcher.changed.notify_all();
        let deadline = Instant::now() + watcher.store.lease().max(SHORTEST_END_WAIT);
        while thread.as_ref().is_some_and(|t| !t.is_finished()) && Instant::now() < deadline {
            thread::park_timeout(SHORTEST_PAUSE);
        }
        match thread.take() {
            Some(running) if !running.is_finished() => {
                tracing::warn!(
                    "the store of '{}' does not answer: its leader does not renew the lease any more",
                    watcher.store.name()
                );
                return;
            }
            finished => drop(finished.map(JoinHandle::join)),
        }
        if let Some(term) = watcher.state.lock().term.take()
            && let Err(error) = watcher.store.resign(term)
        {
            tracing::warn!("could not resign from '{}': {error}", watcher.store.name());
        }
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        self.end();
    }
}

impl ElectionWatcher {
    /// Renews the lease or campaigns until the candidacy ends, and closes the session when this replica's role changes.
    fn watch(&self) {
        let pause = (self.store.lease() / POLLS_PER_LEASE).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        while !self.state.lock().is_ending {
            self.renew_or_campaign();
            let mut state = self.state.lock();
            if let Some(role_change) = self.role_change(&state)
                && let Some(session) = std::mem::take(&mut state.session).upgrade()
            {
                state.closed_because = Some(role_change);
                close(session);
            }
            if !state.is_ending {
                self.changed.wait_for(&mut state, pause);
            }
        }
    }

    /// Renews the lease, or campaigns if this replica does not lead.
    fn renew_or_campaign(&self) {
        let _guard = self.store_lock.lock();
        let name = self.store.name();
        let (term, confirmed_at, is_candidate) = {
            let state = self.state.lock();
            (state.term, state.confirmed_at, state.is_candidate)
        };
        let asked_at = Instant::now();
        let (term, confirmed_at) = match term {
            Some(term) => match self.store.keep(term) {
                Ok(true) => (Some(term), Some(asked_at)),
                Ok(false) => (None, confirmed_at),
                Err(error) => {
                    tracing::warn!("the leader of '{name}' could not renew its lease: {error}");
                    let is_over =
                        confirmed_at.is_none_or(|confirmed_at| confirmed_at.elapsed() > self.store.lease());
                    (if is_over { None } else { Some(term) }, confirmed_at)
                }
            },
            None if is_candidate => match self.store.campaign() {
                Ok(term) => (term, Some(asked_at)),
                Err(error) => {
                    tracing::warn!("could not campaign for '{name}': {error}");
                    return;
                }
            },
            None => return,
        };
        let mut state = self.state.lock();
        (state.term, state.confirmed_at) = (term, confirmed_at);
    }

    /// Returns the change of role since the session was opened.
    fn role_change(&self, state: &ElectionState) -> Option<Error> {
        let name = self.store.name().to_owned();
        match (state.session_term, state.term) {
            (before, now) if before == now => None,
            (Some(term), None) => Some(Error::Deposed { name, term }),
            (_, Some(term)) => Some(Error::Elected { name, term }),
            (None, None) => None,
        }
    }
}

/// Closes a session on a separate thread, because its master may be slow to answer and the lease must be renewed
/// meanwhile.
fn close(session: Arc<Session>) {
    // A failure to start the thread is ignored: calls of the training loop in the session will fail and report errors.
    drop(thread::Builder::new().name("session-closer".to_owned()).spawn(move || drop(session.close())));
}
