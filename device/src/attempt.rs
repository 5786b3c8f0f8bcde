//! Shared state with operations that may have to wait, called attempts: a lock around the state, and queues of
//! attempts. No thread blocks: an attempt is advanced again whenever the state has changed.

use crate::cancel::{Cancellation, Registration};
use crate::error::{Error, Result};
use crate::journal::Record;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The result of advancing an attempt once.
#[derive(Debug)]
pub enum Progress<R> {
    /// The attempt waits and has changed nothing.
    Waits,
    /// The attempt has changed the state, but still waits.
    Advanced,
    /// The attempt has ended.
    Done(Result<R>),
}

/// An operation on state `S` with a result of type `R`.
pub trait Attempt<S, R>: Send {
    /// Continues the operation as far as the state allows.
    fn advance(&mut self, state: &mut S) -> Progress<R>;

    /// Gives back to the state everything that the attempt has taken from it; called if the attempt is cancelled before
    /// its end.
    fn undo(&mut self, _state: &mut S) {}
}

impl<S, R, F: FnMut(&mut S) -> Progress<R> + Send> Attempt<S, R> for F {
    fn advance(&mut self, state: &mut S) -> Progress<R> {
        self(state)
    }
}

/// A callback that receives the result of an attempt. It is called exactly once.
pub type Finish<R> = Box<dyn FnOnce(Result<R>) + Send>;

/// A state with queues of attempts that wait for a change of the state. The attempts of one queue end in the order of
/// arrival, unless the queues were created by [`AttemptQueues::in_any_order`]; attempts of different queues do not wait
/// for each other.
pub struct AttemptQueues<S, R> {
    shared: Arc<Shared<S, R>>,
}

struct Shared<S, R> {
    inner: Mutex<Guarded<S, R>>,
    /// The record in the journal that notes changes of the state; empty if the state is not replicated.
    record: OnceLock<Record>,
}

struct Guarded<S, R> {
    state: S,
    queues: Vec<VecDeque<Waiter<S, R>>>,
    in_order: bool,
    next: u64,
}

struct Waiter<S, R> {
    id: u64,
    attempt: Box<dyn Attempt<S, R>>,
    finish: Finish<R>,
    cancellation: Arc<Cancellation>,
    registration: Option<Registration>,
}

/// Attempts that have ended, with their results; their callbacks are called after the lock is released.
type Ended<S, R> = Vec<(Waiter<S, R>, Result<R>)>;

impl<S: Send + 'static, R: Send + 'static> AttemptQueues<S, R> {
    /// Creates `queues` empty queues of attempts on `state`. The attempts of one queue end in the order of arrival.
    pub fn new(state: S, queues: usize) -> AttemptQueues<S, R> {
        AttemptQueues::with_queues(state, queues, true)
    }

    /// Creates the state with queues in which an attempt ends as soon as the state allows, even before earlier
    /// attempts.
    pub fn in_any_order(state: S, queues: usize) -> AttemptQueues<S, R> {
        AttemptQueues::with_queues(state, queues, false)
    }

    fn with_queues(state: S, queues: usize, in_order: bool) -> AttemptQueues<S, R> {
        let queues = (0..queues).map(|_| VecDeque::new()).collect();
        let inner = Mutex::new(Guarded { state, queues, in_order, next: 0 });
        AttemptQueues { shared: Arc::new(Shared { inner, record: OnceLock::new() }) }
    }

    /// Makes the journal of `record` note all changes of the state from now on.
    pub fn attach(&self, record: Record) {
        // The state belongs to a resource of one store, so the record is set only once.
        let _is_first = self.shared.record.set(record);
    }

    /// Reads the state under the lock.
    pub fn look<T>(&self, look: impl FnOnce(&S) -> T) -> T {
        look(&self.shared.inner.lock().state)
    }

    /// Changes the state, then advances the waiting attempts.
    pub fn with<T>(&self, change: impl FnOnce(&mut S) -> T) -> T {
        let mut ended = Vec::new();
        let result = {
            let mut inner = self.shared.lock();
            let result = change(&mut inner.state);
            inner.flush(&mut ended);
            result
        };
        call_back(ended);
        result
    }

    /// Starts an attempt. The attempt may end before this function returns; otherwise, it waits in queue number `queue`
    /// until the state lets it end or its step is cancelled.
    pub fn attempt(
        &self,
        queue: usize,
        cancellation: &Arc<Cancellation>,
        attempt: impl Attempt<S, R> + 'static,
        finish: Finish<R>,
    ) {
        if let Err(reason) = cancellation.check() {
            return finish(Err(reason));
        }
        let mut ended = Vec::new();
        let (id, waits) = {
            let mut inner = self.shared.lock();
            let id = inner.next;
            inner.next += 1;
            let attempt = Box::new(attempt);
            let cancellation = cancellation.clone();
            inner.queues[queue].push_back(Waiter { id, attempt, finish, cancellation, registration: None });
            inner.flush(&mut ended);
            (id, inner.queues[queue].iter().any(|waiter| waiter.id == id))
        };
        call_back(ended);
        if waits {
            self.end_on_cancellation(queue, id, cancellation);
        }
    }

    /// Registers an attempt to be ended when its step is cancelled.
    fn end_on_cancellation(&self, queue: usize, id: u64, cancellation: &Cancellation) {
        // The callback keeps the state alive, so that a cancellation ends waiting attempts even after the resource with
        // the state was removed from its store.
        let shared = self.shared.clone();
        let end = move |reason: &Error| shared.cancel(queue, id, reason.clone().derived());
        match cancellation.register(end) {
            Err(reason) => self.shared.cancel(queue, id, reason),
            Ok(registration) => {
                let mut inner = self.shared.inner.lock();
                match inner.queues[queue].iter_mut().find(|waiter| waiter.id == id) {
                    Some(waiter) => waiter.registration = Some(registration),
                    None => {
                        drop(inner);
                        cancellation.deregister(registration);
                    }
                }
            }
        }
    }

    /// Applies `change` to the state, and ends all attempts that wait in the queue number `queue` with the error
    /// `reason`.
    pub fn cancel_queue(&self, queue: usize, change: impl FnOnce(&mut S), reason: &Error) {
        let mut ended = Vec::new();
        {
            let mut inner = self.shared.lock();
            change(&mut inner.state);
            let waiters = std::mem::take(&mut inner.queues[queue]);
            for mut waiter in waiters {
                waiter.attempt.undo(&mut inner.state);
                ended.push((waiter, Err(reason.clone())));
            }
            inner.flush(&mut ended);
        }
        call_back(ended);
    }
}

impl<S, R> Shared<S, R> {
    /// Locks the state for a change, and notes the change in the journal if the state is replicated.
    fn lock(&self) -> MutexGuard<'_, Guarded<S, R>> {
        let Some(record) = self.record.get() else { return self.inner.lock() };
        let _collection_guard = record.delay_collection();
        let inner = self.inner.lock();
        record.note_change();
        inner
    }

    /// Ends an attempt with `reason` if it still waits.
    fn cancel(&self, queue: usize, id: u64, reason: Error) {
        let mut ended = Vec::new();
        {
            let mut inner = self.lock();
            let Some(place) = inner.queues[queue].iter().position(|waiter| waiter.id == id) else { return };
            if let Some(mut waiter) = inner.queues[queue].remove(place) {
                waiter.attempt.undo(&mut inner.state);
                ended.push((waiter, Err(reason)));
            }
            inner.flush(&mut ended);
        }
        call_back(ended);
    }
}

impl<S, R> Guarded<S, R> {
    /// Advances the attempts of all queues until none makes progress.
    fn flush(&mut self, ended: &mut Ended<S, R>) {
        let Guarded { state, queues, in_order, .. } = self;
        loop {
            let mut has_advanced = false;
            for queue in queues.iter_mut() {
                let mut place = 0;
                while let Some(waiter) = queue.get_mut(place) {
                    match waiter.attempt.advance(state) {
                        Progress::Done(result) => {
                            has_advanced = true;
                            ended.extend(queue.remove(place).map(|waiter| (waiter, result)));
                            continue;
                        }
                        Progress::Advanced => has_advanced = true,
                        Progress::Waits => {}
                    }
                    if *in_order {
                        break;
                    }
                    place += 1;
                }
            }
            if !has_advanced {
                return;
            }
        }
    }
}

fn call_back<S, R>(ended: Ended<S, R>) {
    for (waiter, result) in ended {
        if let Some(registration) = waiter.registration {
            waiter.cancellation.deregister(registration);
        }
        (waiter.finish)(result);
    }
}

impl<S, R> fmt::Debug for AttemptQueues<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting: usize = self.shared.inner.lock().queues.iter().map(VecDeque::len).sum();
        write!(f, "AttemptQueues({waiting} attempts)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::Code;

    type Counter = AttemptQueues<i64, i64>;
    type Log = Arc<Mutex<Vec<Result<i64>>>>;

    /// An attempt to take `wanted` units from a counter, which takes units as they become available.
    struct Take {
        wanted: i64,
        taken: i64,
    }

    impl Attempt<i64, i64> for Take {
        fn advance(&mut self, state: &mut i64) -> Progress<i64> {
            let got = (*state).min(self.wanted - self.taken);
            *state -= got;
            self.taken += got;
            match got {
                _ if self.taken == self.wanted => Progress::Done(Ok(self.taken)),
                0 => Progress::Waits,
                _ => Progress::Advanced,
            }
        }

        fn undo(&mut self, state: &mut i64) {
            *state += self.taken;
        }
    }

    fn take(counter: &Counter, wanted: i64, step: &Arc<Cancellation>, log: &Log) {
        let log = log.clone();
        counter.attempt(0, step, Take { wanted, taken: 0 }, Box::new(move |r| log.lock().push(r)));
    }

    #[test]
    fn attempts_are_served_in_order_as_the_state_allows() {
        let (counter, step, log) = (Counter::new(0, 1), Arc::new(Cancellation::new()), Log::default());
        for wanted in [3, 1, 2] {
            take(&counter, wanted, &step, &log);
        }
        counter.with(|n| *n += 2);
        assert!(log.lock().is_empty(), "the first attempt is served first");
        counter.with(|n| *n += 2);
        assert_eq!(*log.lock(), [Ok(3), Ok(1)]);
        counter.with(|n| *n += 2);
        assert_eq!(log.lock().pop(), Some(Ok(2)));
    }

    #[test]
    fn a_cancelled_attempt_returns_the_units_it_has_taken() {
        let (counter, log) = (Counter::new(2, 1), Log::default());
        let (first, second) = (Arc::new(Cancellation::new()), Arc::new(Cancellation::new()));
        take(&counter, 3, &first, &log);
        take(&counter, 2, &second, &log);
        assert_eq!(counter.with(|n| *n), 0);
        first.cancel(Error::new(Code::Cancelled, "over"));
        assert_eq!(*log.lock(), [Err(Error::new(Code::Cancelled, "over").derived()), Ok(2)]);
        take(&counter, 1, &first, &log);
        assert_eq!(log.lock().len(), 3, "a cancelled step does not wait");
    }

    #[test]
    fn attempts_in_any_order_do_not_wait_for_earlier_attempts() {
        let (counter, step, log) =
            (Counter::in_any_order(0, 1), Arc::new(Cancellation::new()), Log::default());
        let at_least = |limit: i64| {
            let log = log.clone();
            let attempt =
                move |n: &mut i64| if *n < limit { Progress::Waits } else { Progress::Done(Ok(limit)) };
            counter.attempt(0, &step, attempt, Box::new(move |r| log.lock().push(r)));
        };
        [5, 1, 3].into_iter().for_each(at_least);
        counter.with(|n| *n = 3);
        assert_eq!(*log.lock(), [Ok(1), Ok(3)]);
    }

    #[test]
    fn all_attempts_of_a_queue_end_together() {
        let (counter, step, log) = (Counter::new(1, 1), Arc::new(Cancellation::new()), Log::default());
        take(&counter, 2, &step, &log);
        take(&counter, 5, &step, &log);
        let closed = Error::new(Code::Cancelled, "closed");
        counter.cancel_queue(0, |n| *n += 10, &closed);
        assert_eq!(*log.lock(), [Err(closed.clone()), Err(closed)]);
        assert_eq!(counter.with(|n| *n), 11);
        step.cancel(Error::internal("each callback is called once"));
        assert_eq!(log.lock().len(), 2);
    }
}
