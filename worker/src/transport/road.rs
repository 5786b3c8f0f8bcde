//! What is known of the way to one address: nothing yet, a link, or that there is none for now.

use super::outbound::Outbound;
use super::roads::Roads;
use parking_lot::RwLock;
use proto::channel::Peer;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long no other meeting is tried with one that could not be reached, or whose link broke.
pub(super) const UNREACHED: Duration = Duration::from_secs(1);
/// How long a foreign task is taken for one, and a port for blocked.
pub(super) const FOREIGN: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Road {
    pub(super) peer: Arc<Peer>,
    state: RwLock<State>,
}

#[derive(Debug)]
enum State {
    /// There is no link, and none is tried for before this time.
    None(Option<Instant>),
    Meeting,
    Up(Arc<Outbound>),
}

impl Road {
    pub(super) fn new(peer: Arc<Peer>) -> Arc<Road> {
        Arc::new(Road { peer, state: RwLock::new(State::None(None)) })
    }

    /// The link, if there is one now; if not, begins a meeting where there is to be one.
    pub(crate) fn find(self: &Arc<Self>, roads: &Arc<Roads>) -> Option<Arc<Outbound>> {
        match &*self.state.read() {
            State::Up(link) => return Some(link.clone()),
            State::Meeting => return None,
            State::None(Some(until)) if Instant::now() < *until => return None,
            State::None(_) => {}
        }
        let mut state = self.state.write();
        if let State::None(_) = &*state
            && roads.may_meet()
        {
            *state = State::Meeting;
            drop(state);
            roads.meet(self);
        }
        None
    }

    /// The link, if there is one now.
    pub(crate) fn link(&self) -> Option<Arc<Outbound>> {
        match &*self.state.read() {
            State::Up(link) => Some(link.clone()),
            _ => None,
        }
    }

    pub(super) fn up(&self, link: Arc<Outbound>) {
        *self.state.write() = State::Up(link);
    }

    /// There is no link, and nobody tries for this long.
    pub(super) fn down(&self, pause: Duration) {
        *self.state.write() = State::None(Instant::now().checked_add(pause));
    }

    /// Task and address, for messages.
    pub(super) fn name(&self) -> String {
        format!("{} at {}", self.peer.task(), self.peer.address())
    }
}
