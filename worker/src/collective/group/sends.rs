//! The tensors that one member sends to another outside collectives, as a value: those beyond the limit of bytes in flight
//! wait until the receiver's program has received earlier ones.

use graph::Tensor;
use std::collections::VecDeque;
use std::time::Instant;

/// Maximum number of bytes that a member has in flight to another: bytes that it has sent and that the other's program
/// has not received. A larger tensor is sent when no other tensor is in flight.
pub(super) const MAX_IN_FLIGHT: u64 = 64 << 20;

/// Number of received bytes from which a receiver reports them to the sender. Fewer bytes in flight may already have
/// been received and not yet reported, so they do not delay a tensor.
const REPORTED: u64 = 1 << 20;

/// Number of bytes that each tensor counts in addition to its elements.
const OVERHEAD: u64 = 64;

/// The tensors for one member. `R` is the callback that is told that a tensor is on its way.
#[derive(Debug)]
pub(super) struct Sends<R> {
    /// The number of the next tensor, counted from 0.
    next: u64,
    /// Number of bytes sent. `taken` of them have been received by the receiver's program.
    sent: u64,
    taken: u64,
    waiting: VecDeque<Waiting<R>>,
    next_waiting: u64,
}

#[derive(Debug)]
struct Waiting<R> {
    number: u64,
    tensor: Tensor,
    sender: R,
    deadline: Instant,
}

/// The bytes that this member's program has received from another member.
#[derive(Debug, Default)]
pub(super) struct Taken {
    bytes: u64,
    told: u64,
}

impl<R> Default for Sends<R> {
    fn default() -> Sends<R> {
        Sends { next: 0, sent: 0, taken: 0, waiting: VecDeque::new(), next_waiting: 0 }
    }
}

impl<R> Sends<R> {
    /// Adds a tensor to the waiting ones. Returns the number with which [`Sends::give_up`] removes it.
    pub(super) fn push(&mut self, tensor: Tensor, sender: R, deadline: Instant) -> u64 {
        let number = self.next_waiting;
        self.next_waiting += 1;
        self.waiting.push_back(Waiting { number, tensor, sender, deadline });
        number
    }

    /// Removes and returns the next tensor that may be sent, with its number and its sender.
    pub(super) fn pop(&mut self) -> Option<(u64, Tensor, R)> {
        let weight = weight(&self.waiting.front()?.tensor);
        let in_flight = self.in_flight();
        if in_flight >= REPORTED && in_flight + weight > MAX_IN_FLIGHT {
            return None;
        }
        let Waiting { tensor, sender, .. } = self.waiting.pop_front()?;
        self.sent += weight;
        self.next += 1;
        Some((self.next - 1, tensor, sender))
    }

    /// Records that the receiver's program has received `bytes` since the group began.
    pub(super) fn set_taken(&mut self, bytes: u64) {
        self.taken = self.taken.max(bytes.min(self.sent));
    }

    /// Returns the number of bytes that the receiver's program has not received, as far as it has reported.
    pub(super) fn in_flight(&self) -> u64 {
        self.sent - self.taken
    }

    /// Returns whether tensors wait to be sent.
    pub(super) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Removes a waiting tensor. Returns its sender.
    pub(super) fn give_up(&mut self, number: u64) -> Option<R> {
        let at = self.waiting.iter().position(|waiting| waiting.number == number)?;
        self.waiting.remove(at).map(|waiting| waiting.sender)
    }

    /// Sets the deadline of a waiting tensor.
    pub(super) fn set_deadline(&mut self, number: u64, deadline: Instant) {
        let mut waiting = self.waiting.iter_mut();
        if let Some(waiting) = waiting.find(|waiting| waiting.number == number) {
            waiting.deadline = deadline;
        }
    }

    /// Returns the numbers of the tensors whose deadlines have passed.
    pub(super) fn overdue(&self, now: Instant) -> Vec<u64> {
        self.waiting.iter().filter(|w| w.deadline <= now).map(|w| w.number).collect()
    }

    /// Removes all waiting tensors. Returns their senders.
    pub(super) fn take_senders(&mut self) -> Vec<R> {
        self.waiting.drain(..).map(|waiting| waiting.sender).collect()
    }
}

impl Taken {
    /// Counts a tensor that the program has received. Returns the number of bytes to report, if a report is due.
    pub(super) fn count(&mut self, tensor: &Tensor) -> Option<u64> {
        self.bytes += weight(tensor);
        let is_due = self.bytes - self.told >= REPORTED;
        is_due.then(|| {
            self.told = self.bytes;
            self.bytes
        })
    }
}

/// Returns the number of bytes that a tensor counts.
fn weight(tensor: &Tensor) -> u64 {
    tensor.num_bytes() as u64 + OVERHEAD
}
