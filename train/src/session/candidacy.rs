//! A replica among those that may lead: it stands whenever it opens a session, says that it lives, and ends the session
//! when its part becomes another.

use super::Role;
use crate::election::LeaderStore;
use crate::error::{Error, Result};
use client::Session;
use parking_lot::{Condvar, Mutex};
use proto::Epoch;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A thread looks at the store so often a lease, within limits.
const LOOKS: u32 = 20;
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What a session is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) is_chief: bool,
    /// Of a chief that was elected.
    pub(super) epoch: Option<Epoch>,
}

/// How a replica comes to its part.
#[derive(Debug)]
pub(super) enum Candidacy {
    Fixed { is_chief: bool },
    Standing { shared: Arc<Shared>, thread: Option<JoinHandle<()>> },
}

#[derive(Debug)]
pub(super) struct Shared {
    store: Arc<dyn LeaderStore>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// In which this replica leads.
    term: Option<i64>,
    /// When that was last known to be so.
    kept: Option<Instant>,
    /// The term when the session that there is now was begun.
    of_session: Option<i64>,
    session: Weak<Session>,
    /// Leads if nobody else does.
    stands: bool,
    ends: bool,
}

impl Candidacy {
    pub(super) fn new(role: &Role) -> Result<Candidacy> {
        let store = match role {
            Role::Chief => return Ok(Candidacy::Fixed { is_chief: true }),
            Role::Worker => return Ok(Candidacy::Fixed { is_chief: false }),
            Role::Elected(store) => store.clone(),
        };
        let shared = Arc::new(Shared { store, state: Mutex::default(), changed: Condvar::new() });
        let watching = shared.clone();
        let thread = thread::Builder::new().name("candidacy".to_owned()).spawn(move || watching.watch());
        let thread = thread.map_err(|e| Error::file("candidacy", &e))?;
        Ok(Candidacy::Standing { shared, thread: Some(thread) })
    }

    /// The part in the session that is to be opened now. Each session of a chief has a term of its own, so that workers
    /// refuse what is left of the one before.
    pub(super) fn stand(&self) -> Result<Part> {
        let Candidacy::Standing { shared, .. } = self else {
            return Ok(Part { is_chief: self.is_chief(), epoch: None });
        };
        let mut state = shared.state.lock();
        state.term = shared.store.campaign()?;
        (state.kept, state.stands) = (Some(Instant::now()), true);
        (state.of_session, state.session) = (state.term, Weak::new());
        let name = shared.store.name();
        let epoch = state.term.map(|number| Epoch { name: name.to_owned(), number });
        if let Some(epoch) = &epoch {
            tracing::info!("this replica leads: {epoch}");
        }
        Ok(Part { is_chief: epoch.is_some(), epoch })
    }

    /// From now on the session is closed when the part that it was opened for is over.
    ///
    /// # Errors
    /// `Elected` or `Deposed` if it is already.
    pub(super) fn bind(&self, session: &Arc<Session>) -> Result<()> {
        if let Candidacy::Standing { shared, .. } = self {
            shared.state.lock().session = Arc::downgrade(session);
        }
        self.change().map_or(Ok(()), Err)
    }

    /// Whether this replica is the chief in the session that there is.
    pub(super) fn is_chief(&self) -> bool {
        match self {
            Candidacy::Fixed { is_chief } => *is_chief,
            Candidacy::Standing { shared, .. } => shared.state.lock().of_session.is_some(),
        }
    }

    /// What has become of this replica's part since the session was begun, if it is another: that is why the session
    /// was closed.
    pub(super) fn change(&self) -> Option<Error> {
        let Candidacy::Standing { shared, .. } = self else { return None };
        let state = shared.state.lock();
        let name = shared.store.name().to_owned();
        match (state.of_session, state.term) {
            (before, now) if before == now => None,
            (Some(term), None) => Some(Error::Deposed { name, term }),
            (_, Some(term)) => Some(Error::Elected { name, term }),
            (None, None) => None,
        }
    }

    /// Leads no more than it does: others may when this replica is done.
    pub(super) fn rest(&self) {
        if let Candidacy::Standing { shared, .. } = self {
            shared.state.lock().stands = false;
        }
    }

    /// Lets others lead. What the store fails of has no consequence: a leader that is not heard of is replaced.
    pub(super) fn end(&mut self) {
        let Candidacy::Standing { shared, thread } = self else { return };
        shared.state.lock().ends = true;
        shared.changed.notify_all();
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
        if let Some(term) = shared.state.lock().term.take()
            && let Err(error) = shared.store.resign(term)
        {
            tracing::warn!("could not resign from '{}': {error}", shared.store.name());
        }
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// Keeps the term that there is, or looks for one, until the end.
    fn watch(&self) {
        let pause = (self.store.lease() / LOOKS).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        let mut state = self.state.lock();
        while !state.ends {
            let before = state.term;
            self.look(&mut state);
            if state.term != before
                && let Some(session) = state.session.upgrade()
            {
                close(session);
            }
            self.changed.wait_for(&mut state, pause);
        }
    }

    fn look(&self, state: &mut State) {
        let name = self.store.name();
        match state.term {
            Some(term) => match self.store.keep(term) {
                Ok(true) => state.kept = Some(Instant::now()),
                Ok(false) => state.term = None,
                Err(error) => {
                    tracing::warn!("the leader of '{name}' could not say that it lives: {error}");
                    if state.kept.is_none_or(|kept| kept.elapsed() > self.store.lease()) {
                        state.term = None;
                    }
                }
            },
            None if state.stands => match self.store.campaign() {
                Ok(term) => (state.term, state.kept) = (term, Some(Instant::now())),
                Err(error) => tracing::warn!("could not stand for '{name}': {error}"),
            },
            None => {}
        }
    }
}

/// Ends a session's steps. Its master may be slow to answer, and the leader is to be heard of meanwhile.
fn close(session: Arc<Session>) {
    // Who has no thread for it has none for training either; the session's own calls tell.
    drop(thread::Builder::new().name("session-closer".to_owned()).spawn(move || drop(session.close())));
}
