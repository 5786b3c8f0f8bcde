//! A network without sockets: messages wait until the test delivers them, in an order that the test chooses.

use super::super::register::{Agree, Agreement, Caller, Join, Met};
use device::rendezvous::{Receive, Rendezvous, RendezvousKey, Sent};
use device::{Error, LocalRendezvous};
use graph::Code;
use parking_lot::Mutex;
use proto::Status;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A member's request to the leader in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) rank: usize,
    pub(super) step_id: i64,
}

/// A caller that waits for the leader's answer of type `T`. Dropping it without an answer gives it an error.
pub(super) struct Asker<T> {
    call: Call,
    network: Arc<Network>,
    wrap: fn(Call, Result<T, Status>) -> Message,
    is_answered: bool,
}

impl<T> Asker<T> {
    pub(super) fn new(
        call: Call,
        network: &Arc<Network>,
        wrap: fn(Call, Result<T, Status>) -> Message,
    ) -> Asker<T> {
        Asker { call, network: network.clone(), wrap, is_answered: false }
    }

    pub(super) fn answer(mut self, answer: Result<T, Status>) {
        self.is_answered = true;
        self.network.post((self.wrap)(self.call, answer));
    }
}

impl<T> Drop for Asker<T> {
    fn drop(&mut self) {
        if !self.is_answered {
            let status = Status::new(Code::Aborted, "the session of a member of the group has ended");
            self.network.post((self.wrap)(self.call, Err(status)));
        }
    }
}

impl<T> Caller for Asker<T> {
    fn has_gone(&self) -> bool {
        false
    }
}

/// A message that has not been delivered.
pub(super) enum Message {
    Join(Call, Join),
    Joined(Call, Result<Met, Status>),
    Agree(Call, Box<Agree>),
    Agreed(Call, Result<Agreement, Status>),
    /// A master tells the leader that a step has failed.
    Failed {
        step_id: i64,
        why: Status,
    },
    /// A member is told that a step has failed on another member.
    Cancelled {
        to: usize,
        step_id: i64,
        why: Error,
    },
    Elements(Elements),
    /// A member is told that its link to a dead member has ended.
    Broken {
        to: usize,
        step_id: i64,
        dead: usize,
    },
}

/// Elements for a member in a step. `hops` is the length of the longest chain of messages that ends with this one.
pub(super) struct Elements {
    pub(super) step_id: i64,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) key: Arc<str>,
    pub(super) sent: Sent,
    pub(super) hops: usize,
}

/// The undelivered messages of all steps, and for each member the length of the longest chain of messages that it has
/// received.
#[derive(Default)]
pub(super) struct Network {
    messages: Mutex<Vec<Message>>,
    hops: Vec<AtomicUsize>,
}

impl Network {
    pub(super) fn new(size: usize) -> Arc<Network> {
        Arc::new(Network {
            messages: Mutex::default(),
            hops: (0..size).map(|_| AtomicUsize::new(0)).collect(),
        })
    }

    pub(super) fn post(&self, message: Message) {
        self.messages.lock().push(message);
    }

    /// Removes and returns a message; `None` if there is none. `choose` gets the number of messages and returns an index.
    pub(super) fn take(&self, choose: impl FnOnce(usize) -> usize) -> Option<Message> {
        let mut messages = self.messages.lock();
        (!messages.is_empty()).then(|| {
            let at = choose(messages.len());
            messages.swap_remove(at)
        })
    }

    /// Removes and returns the first message that carries no elements; if there is none, the first one that does.
    pub(super) fn take_in_order(&self) -> Option<Message> {
        let mut messages = self.messages.lock();
        let first = messages.iter().position(|message| !matches!(message, Message::Elements(_)));
        (!messages.is_empty()).then(|| messages.remove(first.unwrap_or(0)))
    }

    /// Removes the messages for which `choose` returns a value. Returns these values.
    pub(super) fn take_all<T>(&self, choose: impl Fn(&Message) -> Option<T>) -> Vec<T> {
        let mut taken = Vec::new();
        self.messages.lock().retain(|message| {
            let chosen = choose(message);
            let is_left = chosen.is_none();
            taken.extend(chosen);
            is_left
        });
        taken
    }

    /// Removes the messages for which `is_lost` returns true.
    pub(super) fn lose(&self, mut is_lost: impl FnMut(&Message) -> bool) {
        self.messages.lock().retain(|message| !is_lost(message));
    }

    /// Records that a member has received elements at the end of a chain of `hops` messages.
    pub(super) fn arrive(&self, rank: usize, hops: usize) {
        self.hops[rank].fetch_max(hops, Ordering::Relaxed);
    }

    /// Returns the length of the longest chain of messages that any member has received.
    pub(super) fn hops(&self) -> usize {
        self.hops.iter().map(|hops| hops.load(Ordering::Relaxed)).max().unwrap_or(0)
    }
}

/// The rendezvous of one member in one step.
pub(super) struct Port {
    pub(super) step_id: i64,
    pub(super) rank: usize,
    pub(super) network: Arc<Network>,
    /// The names of the members' devices, by rank.
    pub(super) devices: Arc<[String]>,
    pub(super) local: LocalRendezvous,
}

impl Rendezvous for Port {
    fn send(&self, key: &Arc<RendezvousKey>, sent: Sent) -> device::Result<()> {
        let to = self.devices.iter().position(|device| **device == *key.dst_device);
        let to = to.ok_or_else(|| Error::internal(format!("{} is no member", key.dst_device)))?;
        let hops = self.network.hops[self.rank].load(Ordering::Relaxed) + 1;
        let (step_id, from, key) = (self.step_id, self.rank, key.text.clone());
        self.network.post(Message::Elements(Elements { step_id, from, to, key, sent, hops }));
        Ok(())
    }

    fn recv(&self, key: &Arc<RendezvousKey>, receive: Receive) {
        self.local.recv(key, receive);
    }

    fn abort(&self, reason: Error) {
        self.local.abort(reason);
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({} in step {})", self.rank, self.step_id)
    }
}
