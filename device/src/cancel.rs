//! Cancellation of a step: a flag, and callbacks that end pending operations.

use crate::error::{Error, Result};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

type Callback = Box<dyn FnOnce(&Error) + Send>;

/// The cancellation state of a step. The first reason is kept; later reasons are ignored.
#[derive(Default)]
pub struct Cancellation {
    cancelled: AtomicBool,
    state: Mutex<CancellationState>,
}

#[derive(Default)]
struct CancellationState {
    reason: Option<Error>,
    next: u64,
    callbacks: FxHashMap<u64, Callback>,
}

/// The identifier of a registered callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration(u64);

impl Cancellation {
    /// Creates the state of a step that is not cancelled.
    pub fn new() -> Cancellation {
        Cancellation::default()
    }

    /// Cancels the step and calls every callback with the reason.
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

    /// Returns whether the step is cancelled.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Returns the reason exactly as given to [`Cancellation::cancel`], or `None` if the step is not cancelled.
    pub fn reason(&self) -> Option<Error> {
        if self.is_cancelled() { self.state.lock().reason.clone() } else { None }
    }

    /// Returns the reason as a [derived](Error::derived) error if the step is cancelled.
    pub fn check(&self) -> Result<()> {
        if !self.is_cancelled() {
            return Ok(());
        }
        let reason = self.reason();
        Err(reason.unwrap_or_else(|| Error::internal("cancelled without a reason")).derived())
    }

    /// Registers a callback that is called upon cancellation. If the step is already cancelled, nothing is registered
    /// and the reason is returned as the error.
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

    /// Removes a callback. Returns whether it was still registered and will therefore not be called.
    pub fn deregister(&self, registration: Registration) -> bool {
        self.state.lock().callbacks.remove(&registration.0).is_some()
    }
}

impl fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cancellation({:?})", self.state.lock().reason)
    }
}
