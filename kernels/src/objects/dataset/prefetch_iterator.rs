//! An iterator that a separate thread prefetches into a buffer of limited length, and the monitor by which the thread
//! and the consumer wait for each other.

use super::state::{ExchangedState, StateExchange};
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

/// A value behind a mutex, with a condition variable: threads change the value, and wait until the value satisfies a
/// condition.
#[derive(Debug, Default)]
pub(super) struct Monitor<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T: Send + 'static> Monitor<T> {
    /// Returns a monitor whose value is `state`.
    pub(crate) fn new(state: T) -> Arc<Monitor<T>> {
        Arc::new(Monitor { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Applies `change` to the state under the lock, wakes all waiting threads, and returns the result of `change`.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.state.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until `ready` returns a value, and returns that value. `ready` may change the state, for example take
    /// the value out.
    ///
    /// # Errors
    /// The reason of the cancellation if `cancellation` is cancelled while the thread waits.
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
        // The callback takes the lock, so it cannot run between a waiting thread's check and its wait, and no wake-up
        // is lost.
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

/// The length of a prefetch buffer, in elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum BufferLimit {
    /// A constant length.
    Fixed(usize),
    /// A length that starts at one element. It doubles, up to this maximum, when the consumer finds the buffer empty
    /// although the buffer has been full since the last growth.
    Growing(usize),
}

/// An iterator whose elements a separate thread prefetches into a buffer. The thread starts at the first call of
/// `next`, or at [`PrefetchIterator::start`]; dropping the iterator cancels the pull in progress.
pub(super) struct PrefetchIterator {
    shared: Arc<Monitor<Buffer>>,
    cancellation: Arc<Cancellation>,
    has_started: bool,
}

/// The elements between the prefetching thread and the consumer, and the input.
struct Buffer {
    /// The input; `None` while the prefetching thread pulls from it or its state is saved, and after a panic.
    input: Option<Box<dyn DatasetIterator>>,
    /// Prefetched elements in input order; an error is stored at the position where it occurred.
    elements: VecDeque<Result<Element>>,
    /// Number of buffered elements at which the prefetching thread pauses.
    limit: usize,
    /// Largest value to which `limit` may grow.
    max_limit: usize,
    /// Set when the buffer has been full since the limit was last raised.
    was_full: bool,
    /// Set when the prefetching thread has ended, so that no element follows the buffered ones.
    ended: bool,
}

impl PrefetchIterator {
    /// Returns a prefetching iterator over `input` whose thread has not started.
    pub(crate) fn new(input: Box<dyn DatasetIterator>, limit: BufferLimit) -> PrefetchIterator {
        let (limit, max_limit) = match limit {
            BufferLimit::Fixed(limit) => (limit.max(1), limit.max(1)),
            BufferLimit::Growing(max_limit) => (1, max_limit.max(1)),
        };
        let buffer = Buffer {
            input: Some(input),
            elements: VecDeque::new(),
            limit,
            max_limit,
            was_full: false,
            ended: false,
        };
        PrefetchIterator { shared: Monitor::new(buffer), cancellation: Arc::default(), has_started: false }
    }

    /// Starts the prefetching thread unless it has started.
    ///
    /// # Errors
    /// `ResourceExhausted` if no thread can be started; the iterator is then at its end.
    pub(crate) fn start(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.has_started, true) {
            return Ok(());
        }
        let (shared, pull) = (self.shared.clone(), Pull { cancellation: self.cancellation.clone() });
        threads::spawn(move || run_prefetch(&shared, &pull)).inspect_err(|_| {
            self.shared.change(|buffer| buffer.ended = true);
        })
    }
}

/// Runs on the prefetching thread: pulls elements into the buffer until the input ends or the pull is cancelled.
fn run_prefetch(shared: &Arc<Monitor<Buffer>>, pull: &Pull) {
    loop {
        let take_input = |b: &mut Buffer| match b.ended {
            true => Some(None),
            false if b.elements.len() < b.limit => b.input.take().map(Some),
            false => None,
        };
        let Ok(Some(mut input)) = shared.wait(&pull.cancellation, take_input) else { return };
        let pulled = catch_unwind(AssertUnwindSafe(|| input.next(pull)));
        let has_panicked = pulled.is_err();
        let pulled = pulled.unwrap_or_else(|_| Err(Error::internal("an iterator panicked")));
        let ended = shared.change(|buffer| {
            match pulled {
                Ok(None) => buffer.ended = true,
                Ok(Some(element)) => buffer.elements.push_back(Ok(element)),
                Err(error) => buffer.elements.push_back(Err(error)),
            }
            // After a panic the state of the input is undefined, so the input is not called again.
            buffer.ended |= has_panicked;
            buffer.input = (!has_panicked).then_some(input);
            buffer.was_full |= buffer.elements.len() >= buffer.limit;
            buffer.ended
        });
        if ended {
            return;
        }
    }
}

impl ExchangedState for PrefetchIterator {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.kind("Prefetch")?;
        // The thread cannot pull while the input is taken, so the buffered elements are those before the input's state.
        let mut input = self.shared.wait(&exchange.pull().cancellation, |buffer| match &buffer.input {
            Some(_) => Some(buffer.input.take()),
            None => buffer.ended.then_some(None),
        })?;
        let exchanged = exchange.input(&mut input);
        let shared = self.shared.clone();
        exchange.at_end(move || shared.change(|buffer| buffer.input = input));
        exchanged?;
        self.shared.change(|buffer| {
            exchange.value(&mut buffer.elements)?;
            exchange.value(&mut buffer.ended)
        })
    }
}

impl DatasetIterator for PrefetchIterator {
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
                buffer.limit = buffer.limit.saturating_mul(2).min(buffer.max_limit);
                buffer.was_full = false;
            }
            None
        })?
    }
}

impl Drop for PrefetchIterator {
    fn drop(&mut self) {
        self.cancellation.cancel(Error::new(Code::Cancelled, "the iterator is no longer there"));
    }
}

impl fmt::Debug for PrefetchIterator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefetchIterator(started: {})", self.has_started)
    }
}
