//! The tensors that one member sends to another outside collectives, as a value: they are received in the order in
//! which they were sent.

use graph::Tensor;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// The tensors from one member, and the receivers that wait for them.
#[derive(Debug)]
pub(super) struct Direct<R> {
    /// The number of the next tensor to be received.
    next: u64,
    /// The tensors that have arrived, by number; large tensors may arrive after later ones.
    arrived: BTreeMap<u64, Tensor>,
    /// The receivers in the order of the receives, each with the number of its receive.
    receivers: VecDeque<(u64, R)>,
    /// The deadlines of the receives, in the order of their numbers.
    deadlines: VecDeque<(u64, Instant)>,
    next_receive: u64,
}

impl<R> Default for Direct<R> {
    fn default() -> Direct<R> {
        Direct {
            next: 0,
            arrived: BTreeMap::new(),
            receivers: VecDeque::new(),
            deadlines: VecDeque::new(),
            next_receive: 0,
        }
    }
}

impl<R> Direct<R> {
    /// Stores the tensor with this number. Returns the receivers that now have their tensors, each with its tensor.
    pub(super) fn arrive(&mut self, number: u64, tensor: Tensor) -> Vec<(R, Tensor)> {
        self.arrived.insert(number, tensor);
        self.pair()
    }

    /// Adds a receiver. Returns the number of the receive, and the receivers that now have their tensors, each with its
    /// tensor.
    pub(super) fn receive(&mut self, receiver: R) -> (u64, Vec<(R, Tensor)>) {
        let number = self.next_receive;
        self.next_receive += 1;
        self.receivers.push_back((number, receiver));
        (number, self.pair())
    }

    /// Sets the deadline of a receive, unless it has ended.
    pub(super) fn set_deadline(&mut self, number: u64, deadline: Instant) {
        let first = self.receivers.front().map_or(self.next_receive, |(first, _)| *first);
        self.deadlines.retain(|(other, _)| *other >= first && *other != number);
        if number >= first {
            self.deadlines.push_back((number, deadline));
        }
    }

    /// Returns the numbers of the receives whose deadlines have passed.
    pub(super) fn overdue(&self, now: Instant) -> Vec<u64> {
        let is_open = |number: u64| self.receivers.iter().any(|(open, _)| *open == number);
        let overdue = self.deadlines.iter().filter(|(number, deadline)| *deadline <= now && is_open(*number));
        overdue.map(|(number, _)| *number).collect()
    }

    /// Removes and returns the receiver of a receive that has not ended.
    pub(super) fn give_up(&mut self, number: u64) -> Option<R> {
        let at = self.receivers.iter().position(|(receive, _)| *receive == number)?;
        self.receivers.remove(at).map(|(_, receiver)| receiver)
    }

    /// Removes and returns all receivers.
    pub(super) fn take_receivers(&mut self) -> Vec<R> {
        self.receivers.drain(..).map(|(_, receiver)| receiver).collect()
    }

    /// Returns whether a receiver waits.
    pub(super) fn is_awaited(&self) -> bool {
        !self.receivers.is_empty()
    }

    /// Returns the number of tensors that have arrived and have not been received.
    pub(super) fn untaken(&self) -> usize {
        self.arrived.len()
    }

    fn pair(&mut self) -> Vec<(R, Tensor)> {
        let mut pairs = Vec::new();
        while !self.receivers.is_empty()
            && let Some(tensor) = self.arrived.remove(&self.next)
        {
            self.next += 1;
            pairs.extend(self.receivers.pop_front().map(|(_, receiver)| (receiver, tensor)));
        }
        pairs
    }
}
