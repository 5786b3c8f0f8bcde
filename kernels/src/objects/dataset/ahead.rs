//! An iterator pulled ahead of its consumer, on a thread of its own, into a buffer of limited length.

use super::threads;
use super::{DatasetIterator, Element, Pull};
use device::cancel::Cancellation;
use device::{Error, Result};
use graph::Code;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// State that threads change and wait for changes of.
#[derive(Debug, Default)]
pub(super) struct Monitor<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T: Send + 'static> Monitor<T> {
    pub(crate) fn new(state: T) -> Arc<Monitor<T>> {
        Arc::new(Monitor { state: Mutex::new(state), changed: Condvar::new() })
    }

    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.state.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until `ready` gives something, which it may take out of the state.
    ///
    /// # Errors
    /// That of a cancellation in the meantime.
    pub(crate) fn wait<R>(
        self: &Arc<Self>,
        cancellation: &Cancellation,
        mut ready: impl FnMut(&mut T) -> Option<R>,
    ) -> Result<R> {
        if let Some(result) = ready(&mut self.state.lock()) {
            self.changed.notify_all();
            return Ok(result);
        }
        let monitor = self.clone();
        // With the lock held in between, the waiter has either not looked yet or is waiting.
        let registration = cancellation.register(move |_| monitor.change(|_| ()))?;
        let mut state = self.state.lock();
        let result = loop {
            if let Some(result) = ready(&mut state) {
                break Ok(result);
            }
            if let Err(cancelled) = cancellation.check() {
                break Err(cancelled);
            }
            self.changed.wait(&mut state);
        };
        drop(state);
        self.changed.notify_all();
        cancellation.deregister(registration);
        result
    }
}

/// How many elements are pulled ahead.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    Fixed(usize),
    /// Grows while the consumer finds the buffer empty, up to this.
    Growing(usize),
}

/// An iterator that a thread pulls ahead, from the first element on that is asked for. Dropped, it cancels the
/// pull that is under way.
pub(super) struct Ahead {
    shared: Arc<Monitor<Buffer>>,
    cancellation: Arc<Cancellation>,
    /// Until the thread has it.
    input: Option<Box<dyn DatasetIterator>>,
}

#[derive(Debug)]
struct Buffer {
    /// In the order in which they came; errors where they occurred.
    elements: VecDeque<Result<Element>>,
    limit: usize,
    most: usize,
    /// Whether it has been full since the limit was last raised.
    was_full: bool,
    ended: bool,
}

impl Ahead {
    pub(crate) fn lazily(input: Box<dyn DatasetIterator>, limit: Limit) -> Ahead {
        let (limit, most) = match limit {
            Limit::Fixed(limit) => (limit.max(1), limit.max(1)),
            Limit::Growing(most) => (1, most.max(1)),
        };
        let buffer = Buffer { elements: VecDeque::new(), limit, most, was_full: false, ended: false };
        Ahead { shared: Monitor::new(buffer), cancellation: Arc::default(), input: Some(input) }
    }

    /// Begins to pull, if it has not.
    pub(crate) fn start(&mut self) -> Result<()> {
        let Some(input) = self.input.take() else { return Ok(()) };
        let (shared, pull) = (self.shared.clone(), Pull { cancellation: self.cancellation.clone() });
        threads::spawn(move || fill(&shared, input, &pull)).inspect_err(|_| {
            self.shared.change(|buffer| buffer.ended = true);
        })
    }
}

/// Pulls until the end, or until nobody wants more.
fn fill(shared: &Arc<Monitor<Buffer>>, mut input: Box<dyn DatasetIterator>, pull: &Pull) {
    loop {
        let has_room = |b: &mut Buffer| (b.elements.len() < b.limit).then_some(());
        if shared.wait(&pull.cancellation, has_room).is_err() {
            return;
        }
        let pulled = catch_unwind(AssertUnwindSafe(|| input.next(pull)));
        let has_panicked = pulled.is_err();
        let pulled = pulled.unwrap_or_else(|_| Err(Error::internal("an iterator panicked")));
        let ended = shared.change(|buffer| {
            match pulled {
                Ok(None) => buffer.ended = true,
                Ok(Some(element)) => buffer.elements.push_back(Ok(element)),
                Err(error) => buffer.elements.push_back(Err(error)),
            }
            // What it would give after a panic, nobody knows.
            buffer.ended |= has_panicked;
            buffer.was_full |= buffer.elements.len() >= buffer.limit;
            buffer.ended
        });
        if ended {
            return;
        }
    }
}

impl DatasetIterator for Ahead {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        self.start()?;
        self.shared.wait(&pull.cancellation, |buffer| {
            if let Some(first) = buffer.elements.pop_front() {
                return Some(first.map(Some));
            }
            if buffer.ended {
                return Some(Ok(None));
            }
            if buffer.was_full {
                buffer.limit = buffer.limit.saturating_mul(2).min(buffer.most);
                buffer.was_full = false;
            }
            None
        })?
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.cancellation.cancel(Error::new(Code::Cancelled, "the iterator is no longer there"));
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ahead({:?})", self.shared)
    }
}
