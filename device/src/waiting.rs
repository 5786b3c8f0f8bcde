//! Objects whose operations may have to wait: state under a lock, and the attempts that wait for it in order. No
//! thread waits: an attempt is tried again whenever the state has changed.

use crate::cancel::{Cancellation, Registration};
use crate::error::{Error, Result};
use crate::journal::Record;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// What one try of an attempt comes to.
#[derive(Debug)]
pub enum Tried<R> {
    /// Nothing has changed.
    Waits,
    /// The state has changed, but the attempt still waits.
    Advanced,
    /// The attempt is over.
    Over(Result<R>),
}

/// An operation on state `S` that ends in an `R`.
pub trait Attempt<S, R>: Send {
    /// Goes as far as the state lets it.
    fn advance(&mut self, state: &mut S) -> Tried<R>;

    /// The attempt ends unfinished: gives back what it has taken.
    fn undo(&mut self, _state: &mut S) {}
}

impl<S, R, F: FnMut(&mut S) -> Tried<R> + Send> Attempt<S, R> for F {
    fn advance(&mut self, state: &mut S) -> Tried<R> {
        self(state)
    }
}

/// Called once with how an attempt ended.
pub type Finish<R> = Box<dyn FnOnce(Result<R>) + Send>;

/// State, and who waits for it. Attempts of one lane are served in order, the first before the next, unless the
/// object says that any may go before another; lanes do not wait for each other.
pub struct Waiting<S, R> {
    shared: Arc<Shared<S, R>>,
}

struct Shared<S, R> {
    inner: Mutex<Inner<S, R>>,
    /// Of an object that has a replica.
    record: OnceLock<Record>,
}

struct Inner<S, R> {
    state: S,
    lanes: Vec<VecDeque<Waiter<S, R>>>,
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

/// Attempts that are over, to be told once the lock is free.
type Ended<S, R> = Vec<(Waiter<S, R>, Result<R>)>;

impl<S: Send + 'static, R: Send + 'static> Waiting<S, R> {
    pub fn new(state: S, lanes: usize) -> Waiting<S, R> {
        Waiting::with_lanes(state, lanes, true)
    }

    /// Whoever waits goes on as soon as the state lets it, whoever waits before it.
    pub fn in_any_order(state: S, lanes: usize) -> Waiting<S, R> {
        Waiting::with_lanes(state, lanes, false)
    }

    fn with_lanes(state: S, lanes: usize, in_order: bool) -> Waiting<S, R> {
        let lanes = (0..lanes).map(|_| VecDeque::new()).collect();
        let inner = Mutex::new(Inner { state, lanes, in_order, next: 0 });
        Waiting { shared: Arc::new(Shared { inner, record: OnceLock::new() }) }
    }

    /// From now on the object's replica follows it.
    pub fn attach(&self, record: Record) {
        // An object is in one store.
        let _is_first = self.shared.record.set(record);
    }

    /// Looks at the state.
    pub fn look<T>(&self, look: impl FnOnce(&S) -> T) -> T {
        look(&self.shared.inner.lock().state)
    }

    /// Changes the state; who waits is then tried again.
    pub fn with<T>(&self, change: impl FnOnce(&mut S) -> T) -> T {
        let mut ended = Vec::new();
        let result = {
            let mut inner = self.shared.lock();
            let result = change(&mut inner.state);
            inner.flush(&mut ended);
            result
        };
        tell(ended);
        result
    }

    /// Starts an attempt: it may be over when this returns, or wait in `lane` until the state lets it end or its
    /// step is cancelled.
    pub fn attempt(
        &self,
        lane: usize,
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
            inner.lanes[lane].push_back(Waiter { id, attempt, finish, cancellation, registration: None });
            inner.flush(&mut ended);
            (id, inner.lanes[lane].iter().any(|waiter| waiter.id == id))
        };
        tell(ended);
        if waits {
            self.watch(lane, id, cancellation);
        }
    }

    /// Ends an attempt when its step is cancelled.
    fn watch(&self, lane: usize, id: u64, cancellation: &Cancellation) {
        // The callback keeps the object: who waits can still be told when its container is cleared.
        let shared = self.shared.clone();
        let end = move |reason: &Error| shared.cancel(lane, id, reason.clone().derived());
        match cancellation.register(end) {
            Err(reason) => self.shared.cancel(lane, id, reason),
            Ok(registration) => {
                let mut inner = self.shared.inner.lock();
                match inner.lanes[lane].iter_mut().find(|waiter| waiter.id == id) {
                    Some(waiter) => waiter.registration = Some(registration),
                    None => {
                        drop(inner);
                        cancellation.deregister(registration);
                    }
                }
            }
        }
    }

    /// Changes the state and ends all who wait in a lane.
    pub fn cancel_lane(&self, lane: usize, change: impl FnOnce(&mut S), reason: &Error) {
        let mut ended = Vec::new();
        {
            let mut inner = self.shared.lock();
            change(&mut inner.state);
            let waiters = std::mem::take(&mut inner.lanes[lane]);
            for mut waiter in waiters {
                waiter.attempt.undo(&mut inner.state);
                ended.push((waiter, Err(reason.clone())));
            }
            inner.flush(&mut ended);
        }
        tell(ended);
    }
}

impl<S, R> Shared<S, R> {
    /// The state, to be changed.
    fn lock(&self) -> MutexGuard<'_, Inner<S, R>> {
        let Some(record) = self.record.get() else { return self.inner.lock() };
        let _not_taken = record.hold();
        let inner = self.inner.lock();
        record.changes();
        inner
    }

    /// Ends one attempt, if it still waits.
    fn cancel(&self, lane: usize, id: u64, reason: Error) {
        let mut ended = Vec::new();
        {
            let mut inner = self.lock();
            let Some(place) = inner.lanes[lane].iter().position(|waiter| waiter.id == id) else { return };
            if let Some(mut waiter) = inner.lanes[lane].remove(place) {
                waiter.attempt.undo(&mut inner.state);
                ended.push((waiter, Err(reason)));
            }
            inner.flush(&mut ended);
        }
        tell(ended);
    }
}

impl<S, R> Inner<S, R> {
    /// Tries the lanes in turn until none gets further.
    fn flush(&mut self, ended: &mut Ended<S, R>) {
        let Inner { state, lanes, in_order, .. } = self;
        loop {
            let mut changed = false;
            for lane in lanes.iter_mut() {
                let mut place = 0;
                while let Some(waiter) = lane.get_mut(place) {
                    match waiter.attempt.advance(state) {
                        Tried::Over(result) => {
                            changed = true;
                            ended.extend(lane.remove(place).map(|waiter| (waiter, result)));
                            continue;
                        }
                        Tried::Advanced => changed = true,
                        Tried::Waits => {}
                    }
                    if *in_order {
                        break;
                    }
                    place += 1;
                }
            }
            if !changed {
                return;
            }
        }
    }
}

fn tell<S, R>(ended: Ended<S, R>) {
    for (waiter, result) in ended {
        if let Some(registration) = waiter.registration {
            waiter.cancellation.deregister(registration);
        }
        (waiter.finish)(result);
    }
}

impl<S, R> fmt::Debug for Waiting<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting: usize = self.shared.inner.lock().lanes.iter().map(VecDeque::len).sum();
        write!(f, "Waiting({waiting} attempts)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::Code;

    type Counter = Waiting<i64, i64>;
    type Log = Arc<Mutex<Vec<Result<i64>>>>;

    /// Takes one at a time until it has `wanted`.
    struct Take {
        wanted: i64,
        taken: i64,
    }

    impl Attempt<i64, i64> for Take {
        fn advance(&mut self, state: &mut i64) -> Tried<i64> {
            let got = (*state).min(self.wanted - self.taken);
            *state -= got;
            self.taken += got;
            match got {
                _ if self.taken == self.wanted => Tried::Over(Ok(self.taken)),
                0 => Tried::Waits,
                _ => Tried::Advanced,
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
        assert!(log.lock().is_empty(), "who came first comes first");
        counter.with(|n| *n += 2);
        assert_eq!(*log.lock(), [Ok(3), Ok(1)]);
        counter.with(|n| *n += 2);
        assert_eq!(log.lock().pop(), Some(Ok(2)));
    }

    #[test]
    fn a_cancelled_attempt_gives_back_what_it_has_taken() {
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
    fn without_an_order_nobody_waits_for_who_came_before() {
        let (counter, step, log) =
            (Counter::in_any_order(0, 1), Arc::new(Cancellation::new()), Log::default());
        let at_least = |limit: i64| {
            let log = log.clone();
            let attempt = move |n: &mut i64| if *n < limit { Tried::Waits } else { Tried::Over(Ok(limit)) };
            counter.attempt(0, &step, attempt, Box::new(move |r| log.lock().push(r)));
        };
        [5, 1, 3].into_iter().for_each(at_least);
        counter.with(|n| *n = 3);
        assert_eq!(*log.lock(), [Ok(1), Ok(3)]);
    }

    #[test]
    fn a_lane_ends_as_one() {
        let (counter, step, log) = (Counter::new(1, 1), Arc::new(Cancellation::new()), Log::default());
        take(&counter, 2, &step, &log);
        take(&counter, 5, &step, &log);
        let closed = Error::new(Code::Cancelled, "closed");
        counter.cancel_lane(0, |n| *n += 10, &closed);
        assert_eq!(*log.lock(), [Err(closed.clone()), Err(closed)]);
        assert_eq!(counter.with(|n| *n), 11);
        step.cancel(Error::internal("no one is told twice"));
        assert_eq!(log.lock().len(), 2);
    }
}
