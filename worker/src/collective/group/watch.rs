//! The deadlines of calls, including calls whose result no thread waits for.

use super::{Group, GroupCallId};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shortest and longest pause between two searches for calls whose deadlines have passed.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Number of searches for overdue calls per timeout of the group.
const PAUSES: u32 = 16;

/// The deadline of a call whose timeout the clock cannot represent.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

impl Group {
    /// Ends calls whose deadlines have passed, until the group is dropped. A thread that waits for a call ends the call
    /// itself, a little earlier.
    pub(super) fn watch(self: &Arc<Self>) {
        let own = Arc::downgrade(self);
        let pause = (self.timeout / PAUSES).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.worker.runtime.spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(group) = own.upgrade() else { return };
                group.expire_overdue(pause);
            }
        });
    }

    /// Sets the deadline of a call in progress.
    pub fn set_deadline(&self, call: GroupCallId, deadline: Instant) {
        let mut state = self.state.lock();
        match call {
            GroupCallId::Collective(number) => state.calls.set_deadline(number, deadline),
            GroupCallId::Receive { peer, number } => state.direct[peer].set_deadline(number, deadline),
            GroupCallId::Send { peer, number } => state.sends[peer].set_deadline(number, deadline),
        }
    }

    /// Returns the deadline of a call that starts now.
    pub(super) fn deadline(&self) -> Instant {
        let now = Instant::now();
        now.checked_add(self.timeout).unwrap_or(now + FAR)
    }

    /// Ends the calls whose deadlines passed `grace` ago.
    fn expire_overdue(&self, grace: Duration) {
        let Some(now) = Instant::now().checked_sub(grace) else { return };
        let overdue: Vec<GroupCallId> = {
            let state = self.state.lock();
            let calls = state.calls.overdue(now).into_iter().map(GroupCallId::Collective);
            let receives = state.direct.iter().enumerate().flat_map(|(peer, direct)| {
                direct.overdue(now).into_iter().map(move |number| GroupCallId::Receive { peer, number })
            });
            let sends = state.sends.iter().enumerate().flat_map(|(peer, sends)| {
                sends.overdue(now).into_iter().map(move |number| GroupCallId::Send { peer, number })
            });
            calls.chain(receives).chain(sends).collect()
        };
        for call in overdue {
            self.probe(call);
            self.expire(call, self.timeout);
        }
    }
}
