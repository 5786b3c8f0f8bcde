//! What a standby knows of a queue. One that shuffles draws anew there.

use super::{Element, Queue};
use crate::journal::{Extent, Record, Replicated, State};

impl Replicated for Queue {
    fn attach(&self, record: Record) {
        self.waiting.attach(record);
    }

    fn state(&self, _extent: &Extent) -> State {
        // Whoever waits for more than there is ends with this process, and gives back what it has.
        let (elements, is_closed) = self.waiting.look(|state| {
            let elements = state.aside.iter().cloned().chain(state.order.elements()).collect();
            (elements, state.is_closed)
        });
        State::Queue { spec: self.spec.clone(), elements, is_closed }
    }
}

impl Queue {
    /// The queue holds these elements, the first to come first.
    pub(crate) fn set_state(&self, elements: Vec<Element>, is_closed: bool) {
        self.waiting.with(|state| {
            state.order = self.spec.new_order();
            state.aside.clear();
            state.is_closed = is_closed;
            elements.into_iter().for_each(|element| state.order.push(element));
        });
    }
}
