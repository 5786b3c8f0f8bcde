//! Ends threads together: each asks whether it is to stop, and the first failure of one stops all.

use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Shared by a training loop and the threads beside it; clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Coordinator {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// As whoever trains has asked for.
    stops: AtomicBool,
    /// Because of `failure`.
    has_failed: AtomicBool,
    /// The last step, once the job has come to it.
    arrived: Mutex<Option<i64>>,
    failure: Mutex<Option<Error>>,
    threads: Mutex<Vec<(String, JoinHandle<()>)>>,
}

impl Coordinator {
    pub fn request_stop(&self) {
        self.shared.stops.store(true, Ordering::Release);
    }

    pub fn should_stop(&self) -> bool {
        self.is_asked_to_stop() || self.has_failed()
    }

    pub(super) fn is_asked_to_stop(&self) -> bool {
        self.shared.stops.load(Ordering::Acquire)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.shared.has_failed.load(Ordering::Acquire)
    }

    /// The job has come to this step, its last one. Training ends once that is safe; until then it may go back.
    pub fn arrive(&self, last_step: i64) {
        *self.shared.arrived.lock() = Some(last_step);
    }

    /// The last step, if the job has come to it.
    pub fn arrived(&self) -> Option<i64> {
        *self.shared.arrived.lock()
    }

    /// What is to come is another session: where that begins is seen there.
    pub(super) fn depart(&self) {
        *self.shared.arrived.lock() = None;
    }

    /// Stops all because of a failure; the first one is kept. Where a new session mends it, training goes on in that.
    pub fn fail(&self, error: Error) {
        self.note(error);
        self.shared.has_failed.store(true, Ordering::Release);
    }

    /// What stopped all, if it was a failure.
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure.lock().clone()
    }

    /// Notes a failure that a new session may mend: nothing stops yet.
    pub(super) fn note(&self, error: Error) {
        self.shared.failure.lock().get_or_insert(error);
    }

    /// The failure, which is over.
    pub(super) fn take_failure(&self) -> Option<Error> {
        self.shared.has_failed.store(false, Ordering::Release);
        self.shared.failure.lock().take()
    }

    /// Starts a thread that [`Coordinator::join`] waits for; what it returns stops all if it is an error.
    pub fn spawn(
        &self,
        name: &str,
        run: impl FnOnce(&Coordinator) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let (coordinator, own_name) = (self.clone(), name.to_owned());
        let body = move || match catch_unwind(AssertUnwindSafe(|| run(&coordinator))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => coordinator.fail(error),
            Err(_) => coordinator.fail(Error::Panicked { thread: own_name }),
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(body);
        let thread = thread.map_err(|e| Error::file(name, &e))?;
        let mut threads = self.shared.threads.lock();
        threads.retain(|(_, thread)| !thread.is_finished());
        threads.push((name.to_owned(), thread));
        Ok(())
    }

    /// Waits until all threads have ended.
    ///
    /// # Errors
    /// What stopped all, or `Threads` by the names of those that did not end in time.
    pub fn join(&self, grace: Duration) -> Result<()> {
        let started = Instant::now();
        let threads = std::mem::take(&mut *self.shared.threads.lock());
        while threads.iter().any(|(_, t)| !t.is_finished()) && started.elapsed() < grace {
            thread::park_timeout(Duration::from_millis(1));
        }
        let late: Vec<String> =
            threads.iter().filter(|(_, t)| !t.is_finished()).map(|(name, _)| name.clone()).collect();
        if !late.is_empty() {
            return Err(Error::Threads { waited: started.elapsed(), names: late });
        }
        self.failure().map_or(Ok(()), Err)
    }
}
