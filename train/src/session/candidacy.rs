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

/// The thread is waited for at the end for a lease, but not for less.
const LEAST_PATIENCE: Duration = Duration::from_secs(5);

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
    /// Held while the store is asked, so that one asks at a time. Locked before the state, which is free meanwhile: no
    /// step waits for the store.
    asking: Mutex<()>,
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
    /// Why it was closed here, if it was.
    closed: Option<Error>,
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
        let shared = Arc::new(Shared {
            store,
            asking: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
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
        let _asking = shared.asking.lock();
        let asked = Instant::now();
        let term = shared.store.campaign()?;
        let mut state = shared.state.lock();
        *state = State { term, kept: Some(asked), of_session: term, stands: true, ..State::default() };
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
        state.closed.clone().or_else(|| shared.change(&state))
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
        let deadline = Instant::now() + shared.store.lease().max(LEAST_PATIENCE);
        while thread.as_ref().is_some_and(|t| !t.is_finished()) && Instant::now() < deadline {
            thread::park_timeout(SHORTEST_PAUSE);
        }
        match thread.take() {
            Some(asking) if !asking.is_finished() => {
                tracing::warn!(
                    "'{}' does not answer: its leader is not heard of any more",
                    shared.store.name()
                );
                return;
            }
            asked => drop(asked.map(JoinHandle::join)),
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
        while !self.state.lock().ends {
            self.look();
            let mut state = self.state.lock();
            if let Some(change) = self.change(&state)
                && let Some(session) = std::mem::take(&mut state.session).upgrade()
            {
                state.closed = Some(change);
                close(session);
            }
            if !state.ends {
                self.changed.wait_for(&mut state, pause);
            }
        }
    }

    /// Keeps the term, or stands for one.
    fn look(&self) {
        let _asking = self.asking.lock();
        let name = self.store.name();
        let (term, kept, stands) = {
            let state = self.state.lock();
            (state.term, state.kept, state.stands)
        };
        let asked = Instant::now();
        let (term, kept) = match term {
            Some(term) => match self.store.keep(term) {
                Ok(true) => (Some(term), Some(asked)),
                Ok(false) => (None, kept),
                Err(error) => {
                    tracing::warn!("the leader of '{name}' could not say that it lives: {error}");
                    let is_over = kept.is_none_or(|kept| kept.elapsed() > self.store.lease());
                    (if is_over { None } else { Some(term) }, kept)
                }
            },
            None if stands => match self.store.campaign() {
                Ok(term) => (term, Some(asked)),
                Err(error) => {
                    tracing::warn!("could not stand for '{name}': {error}");
                    return;
                }
            },
            None => return,
        };
        let mut state = self.state.lock();
        (state.term, state.kept) = (term, kept);
    }

    /// What has become of the part since the session was begun.
    fn change(&self, state: &State) -> Option<Error> {
        let name = self.store.name().to_owned();
        match (state.of_session, state.term) {
            (before, now) if before == now => None,
            (Some(term), None) => Some(Error::Deposed { name, term }),
            (_, Some(term)) => Some(Error::Elected { name, term }),
            (None, None) => None,
        }
    }
}

/// Ends a session's steps. Its master may be slow to answer, and the leader is to be heard of meanwhile.
fn close(session: Arc<Session>) {
    // Who has no thread for it has none for training either; the session's own calls tell.
    drop(thread::Builder::new().name("session-closer".to_owned()).spawn(move || drop(session.close())));
}
