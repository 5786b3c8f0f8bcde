//! Ends threads together: each asks whether it is to stop, and the first failure of one stops all.

use crate::error::{Error, Result};
use parking_lot::Mutex;
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
    stops: AtomicBool,
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
        self.shared.stops.load(Ordering::Acquire)
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

    /// Stops all because of a failure; the first one is kept.
    pub fn fail(&self, error: Error) {
        self.shared.failure.lock().get_or_insert(error);
        self.request_stop();
    }

    /// What stopped all, if it was a failure.
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure.lock().clone()
    }

    /// Notes a failure that a new session may mend: nothing stops yet.
    pub(super) fn note(&self, error: Error) {
        self.shared.failure.lock().get_or_insert(error);
    }

    pub(super) fn take_failure(&self) -> Option<Error> {
        self.shared.failure.lock().take()
    }

    /// Starts a thread that [`Coordinator::join`] waits for; what it returns stops all if it is an error.
    pub fn spawn(
        &self,
        name: &str,
        run: impl FnOnce(&Coordinator) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let coordinator = self.clone();
        let body = move || {
            if let Err(error) = run(&coordinator) {
                coordinator.fail(error);
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(body);
        let thread = thread.map_err(|e| Error::file(name, &e))?;
        self.shared.threads.lock().push((name.to_owned(), thread));
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
