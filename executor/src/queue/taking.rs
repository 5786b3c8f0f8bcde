//! A dequeue under way: it takes elements as they come, and gives them back if it cannot have all.

use super::{Element, State};
use crate::error::Error;
use crate::waiting::{Attempt, Tried};
use graph::Code;

pub(super) struct Taking {
    /// The queue in messages.
    queue: String,
    wanted: usize,
    up_to: bool,
    taken: Vec<Element>,
}

impl Taking {
    pub(super) fn of(wanted: usize, up_to: bool) -> Taking {
        Taking { queue: String::new(), wanted, up_to, taken: Vec::new() }
    }

    /// The same of a queue by this name.
    pub(super) fn from(self, queue: String) -> Taking {
        Taking { queue, ..self }
    }
}

impl Attempt<State, Vec<Element>> for Taking {
    fn advance(&mut self, state: &mut State) -> Tried<Vec<Element>> {
        let missing = self.wanted - self.taken.len();
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
        for _ in 0..there.min(self.wanted - self.taken.len()) {
            self.taken.extend(state.order.pop());
            tried = Tried::Advanced;
        }
        if self.taken.len() == self.wanted { Tried::Over(Ok(std::mem::take(&mut self.taken))) } else { tried }
    }

    fn undo(&mut self, state: &mut State) {
        while let Some(element) = self.taken.pop() {
            state.order.put_back(element);
        }
    }
}
