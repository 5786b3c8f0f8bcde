//! A fair lock: steps get access to the value in the order of their requests. A waiting request can be cancelled, and
//! occupies no thread.

use device::attempt::{AttemptQueues, Progress};
use device::cancel::Cancellation;
use device::{Error, Result};
use parking_lot::Mutex;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A value and the queue of requests for it. The value is absent while a guard owns it.
pub struct FairLock<T> {
    shared: Arc<Shared<T>>,
}

type Shared<T> = AttemptQueues<Option<T>, Option<T>>;

impl<T: Default + Send + 'static> FairLock<T> {
    /// Returns a fair lock around `value`, unlocked.
    pub fn new(value: T) -> FairLock<T> {
        FairLock { shared: Arc::new(AttemptQueues::new(Some(value), 1)) }
    }

    /// Passes a guard of the value to `done` after all earlier requests have released the value. Cancelling `step`
    /// withdraws the request.
    pub fn lock(
        &self,
        step: &Arc<Cancellation>,
        done: impl FnOnce(Result<FairLockGuard<T>>) + Send + 'static,
    ) {
        let attempt = |value_slot: &mut Option<T>| match value_slot.take() {
            Some(value) => Progress::Done(Ok(Some(value))),
            None => Progress::Waits,
        };
        let shared = self.shared.clone();
        let give = move |value: Result<Option<T>>| {
            done(value.map(|value| FairLockGuard { shared, value: value.unwrap_or_default() }));
        };
        self.shared.attempt(0, step, attempt, Box::new(give));
    }

    /// Runs `act`, which must be short, on the value after all earlier requests have released it. Waiting requests run
    /// one after the other without recursion, so their number does not grow the stack.
    pub fn with<R: Send + 'static>(
        &self,
        step: &Arc<Cancellation>,
        mut act: impl FnMut(&mut T) -> Result<R> + Send + 'static,
        done: impl FnOnce(Result<R>) + Send + 'static,
    ) {
        let acted: Arc<Mutex<Option<R>>> = Arc::default();
        let slot = acted.clone();
        let attempt = move |value_slot: &mut Option<T>| match value_slot {
            Some(value) => Progress::Done(act(value).map(|answer| {
                *slot.lock() = Some(answer);
                None
            })),
            None => Progress::Waits,
        };
        let answer = move |over: Result<Option<T>>| {
            let answer = over.and_then(|_| acted.lock().take().ok_or_else(|| Error::internal("no answer")));
            done(answer);
        };
        self.shared.attempt(0, step, attempt, Box::new(answer));
    }
}

impl<T: Send + 'static> fmt::Debug for FairLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FairLock({:?})", self.shared)
    }
}

/// The exclusive access of one request to the value of a [`FairLock`]; dropping the guard passes the value to the next
/// request.
pub struct FairLockGuard<T: Default + Send + 'static> {
    shared: Arc<Shared<T>>,
    value: T,
}

impl<T: Default + Send + 'static> Deref for FairLockGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Default + Send + 'static> DerefMut for FairLockGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: Default + Send + 'static> Drop for FairLockGuard<T> {
    fn drop(&mut self) {
        let value = std::mem::take(&mut self.value);
        self.shared.with(|value_slot| *value_slot = Some(value));
    }
}

impl<T: Default + Send + 'static> fmt::Debug for FairLockGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FairLockGuard")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::Code;

    #[test]
    fn requests_wait_while_a_guard_exists_and_can_be_cancelled() {
        let (lock, step) = (FairLock::new(1), Arc::new(Cancellation::new()));
        let held: Arc<Mutex<Option<FairLockGuard<i32>>>> = Arc::default();
        let slot = held.clone();
        lock.lock(&step, move |guard| *slot.lock() = guard.ok());
        let answers: Arc<Mutex<Vec<Result<i32>>>> = Arc::default();
        let ask = |step: &Arc<Cancellation>| {
            let answers = answers.clone();
            lock.with(step, |value| Ok(*value), move |answer| answers.lock().push(answer));
        };
        let other = Arc::new(Cancellation::new());
        ask(&other);
        (0..3_000).for_each(|_| ask(&step));
        assert!(answers.lock().is_empty());
        other.cancel(Error::new(Code::Cancelled, "over"));
        assert_eq!(answers.lock().pop().and_then(|r| r.err()).map(|e| e.code()), Some(Code::Cancelled));
        let guard = held.lock().take().map(|mut guard| *guard += 1);
        assert_eq!(guard, Some(()));
        assert_eq!(answers.lock().len(), 3_000);
        assert!(answers.lock().iter().all(|answer| *answer == Ok(2)));
    }
}
