//! Cancellation of a step: one flag, and callbacks for those who wait.

use crate::error::{Error, Result};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

type Callback = Box<dyn FnOnce(&Error) + Send>;

/// Cancelled at most once, with a reason; later reasons are ignored.
#[derive(Default)]
pub struct Cancellation {
    cancelled: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reason: Option<Error>,
    next: u64,
    callbacks: FxHashMap<u64, Callback>,
}

/// A registered callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration(u64);

impl Cancellation {
    pub fn new() -> Cancellation {
        Cancellation::default()
    }

    /// Cancels, and calls every callback with the reason.
    pub fn cancel(&self, reason: Error) {
        let callbacks = {
            let mut state = self.state.lock();
            if state.reason.is_some() {
                return;
            }
            state.reason = Some(reason.clone());
            self.cancelled.store(true, Ordering::Release);
            std::mem::take(&mut state.callbacks)
        };
        for callback in callbacks.into_values() {
            callback(&reason);
        }
    }

    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// The reason as it was given, once cancelled.
    pub fn reason(&self) -> Option<Error> {
        if self.is_cancelled() { self.state.lock().reason.clone() } else { None }
    }

    /// The reason as an error, once cancelled.
    pub fn check(&self) -> Result<()> {
        if !self.is_cancelled() {
            return Ok(());
        }
        let reason = self.reason();
        Err(reason.unwrap_or_else(|| Error::internal("cancelled without a reason")).derived())
    }

    /// Calls `callback` upon cancellation. If that has been already, nothing is registered and the reason is
    /// the error.
    pub fn register(&self, callback: impl FnOnce(&Error) + Send + 'static) -> Result<Registration> {
        let mut state = self.state.lock();
        if let Some(reason) = &state.reason {
            return Err(reason.clone().derived());
        }
        let key = state.next;
        state.next += 1;
        state.callbacks.insert(key, Box::new(callback));
        Ok(Registration(key))
    }

    /// Forgets a callback; whether it was still there, and so will not be called.
    pub fn deregister(&self, registration: Registration) -> bool {
        self.state.lock().callbacks.remove(&registration.0).is_some()
    }
}

impl fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cancellation({:?})", self.state.lock().reason)
    }
}
