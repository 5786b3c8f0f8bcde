//! The dequeue operation, which takes elements as they arrive, and puts them back into the queue if it ends before it
//! has all of them.

use super::{Element, QueueContents};
use device::Error;
use device::attempt::{Attempt, Progress};
use graph::Code;

/// A dequeue that waits for elements or has taken some of them.
pub(super) struct DequeueAttempt {
    /// Name of the queue for messages.
    queue: String,
    requested: usize,
    up_to: bool,
    /// Number of elements that the dequeue has taken: the length of `taken_elements` for the first waiting dequeue, and
    /// 0 for later dequeues.
    taken: usize,
}

impl DequeueAttempt {
    pub(super) fn of(requested: usize, up_to: bool) -> DequeueAttempt {
        DequeueAttempt { queue: String::new(), requested, up_to, taken: 0 }
    }

    /// Returns the attempt with `queue` as the name of the queue in error messages.
    pub(super) fn with_queue(self, queue: String) -> DequeueAttempt {
        DequeueAttempt { queue, ..self }
    }
}

impl Attempt<QueueContents, Vec<Element>> for DequeueAttempt {
    fn advance(&mut self, state: &mut QueueContents) -> Progress<Vec<Element>> {
        let missing = self.requested - self.taken;
        let mut available = state.order.len();
        if state.is_closed && available < missing {
            let size = available;
            self.undo(state);
            available = state.order.len();
            if !self.up_to || available == 0 {
                let message = format!(
                    "{} is closed and has insufficient elements (requested {missing}, current size {size})",
                    self.queue,
                );
                return Progress::Done(Err(Error::new(Code::OutOfRange, message)));
            }
            self.requested = available;
        }
        if state.order.is_ranked() && available < self.requested {
            return Progress::Waits;
        }
        if !state.is_closed {
            available = available.saturating_sub(state.order.min_remaining());
        }
        let mut tried = Progress::Waits;
        for _ in 0..available.min(self.requested - self.taken) {
            state.taken_elements.extend(state.order.pop());
            self.taken = state.taken_elements.len();
            tried = Progress::Advanced;
        }
        if self.taken == self.requested {
            Progress::Done(Ok(std::mem::take(&mut state.taken_elements)))
        } else {
            tried
        }
    }

    fn undo(&mut self, state: &mut QueueContents) {
        if std::mem::take(&mut self.taken) > 0 {
            state.put_back_taken();
        }
    }
}
