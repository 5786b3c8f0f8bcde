//! The dequeue operation: takes elements as they arrive, and returns them to the queue if it ends unfinished.

use super::{Element, State};
use device::Error;
use device::waiting::{Attempt, Tried};
use graph::Code;

/// A dequeue that is waiting or under way.
pub(super) struct Taking {
    /// Name of the queue for messages.
    queue: String,
    wanted: usize,
    up_to: bool,
    /// Number of elements taken so far: all taken elements of the state or none, because only the first waiting
    /// dequeue takes elements.
    taken: usize,
}

impl Taking {
    pub(super) fn of(wanted: usize, up_to: bool) -> Taking {
        Taking { queue: String::new(), wanted, up_to, taken: 0 }
    }

    /// Returns the operation with the queue's name.
    pub(super) fn from(self, queue: String) -> Taking {
        Taking { queue, ..self }
    }
}

impl Attempt<State, Vec<Element>> for Taking {
    fn advance(&mut self, state: &mut State) -> Tried<Vec<Element>> {
        let missing = self.wanted - self.taken;
        let mut there = state.order.len();
        if state.is_closed && there < missing {
            let size = there;
            self.undo(state);
            there = state.order.len();
            if !self.up_to || there == 0 {
                let message = format!(
                    "{} is closed and has insufficient elements (requested {missing}, current size {size})",
                    self.queue,
                );
                return Tried::Over(Err(Error::new(Code::OutOfRange, message)));
            }
            self.wanted = there;
        }
        if state.order.is_ranked() && there < self.wanted {
            return Tried::Waits;
        }
        if !state.is_closed {
            there = there.saturating_sub(state.order.kept_back());
        }
        let mut tried = Tried::Waits;
        for _ in 0..there.min(self.wanted - self.taken) {
            state.aside.extend(state.order.pop());
            self.taken = state.aside.len();
            tried = Tried::Advanced;
        }
        if self.taken == self.wanted { Tried::Over(Ok(std::mem::take(&mut state.aside))) } else { tried }
    }

    fn undo(&mut self, state: &mut State) {
        if std::mem::take(&mut self.taken) > 0 {
            state.put_back_aside();
        }
    }
}
