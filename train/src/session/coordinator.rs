//! The coordinator of threads: each thread polls whether it is to stop, and the first failure stops all.

use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The coordinator of a training loop and its threads; clones share one state.
#[derive(Clone, Debug, Default)]
pub struct Coordinator {
    state: Arc<CoordinatorState>,
}

#[derive(Debug, Default)]
struct CoordinatorState {
    /// Set when the end of training has been requested.
    is_stop_requested: AtomicBool,
    /// Set when all threads are to stop because of `failure`.
    has_failed: AtomicBool,
    /// The last step of the job, once it has been reached.
    reached_last_step: Mutex<Option<i64>>,
    failure: Mutex<Option<Error>>,
    threads: Mutex<Vec<(String, JoinHandle<()>)>>,
}

impl Coordinator {
    /// Requests the end of training.
    pub fn request_stop(&self) {
        self.state.is_stop_requested.store(true, Ordering::Release);
    }

    /// Returns whether threads are to stop, because the end of training has been requested or because of a failure.
    pub fn should_stop(&self) -> bool {
        self.is_asked_to_stop() || self.has_failed()
    }

    /// Returns whether the end of training has been requested.
    pub(super) fn is_asked_to_stop(&self) -> bool {
        self.state.is_stop_requested.load(Ordering::Acquire)
    }

    /// Returns whether a failure has stopped the threads.
    pub(super) fn has_failed(&self) -> bool {
        self.state.has_failed.load(Ordering::Acquire)
    }

    /// Records that the job has reached its last step. Training ends once hooks have saved the results; until then a
    /// recovery may take the job back to an earlier step.
    pub fn reach_last_step(&self, last_step: i64) {
        *self.state.reached_last_step.lock() = Some(last_step);
    }

    /// Returns the last step, if the job has reached it.
    pub fn reached_last_step(&self) -> Option<i64> {
        *self.state.reached_last_step.lock()
    }

    /// Forgets that the last step was reached, because a new session may start at an earlier step.
    pub(super) fn clear_last_step(&self) {
        *self.state.reached_last_step.lock() = None;
    }

    /// Stops all threads because of `error`; the first failure is kept. A failure that a new session fixes does not end
    /// training.
    pub fn fail(&self, error: Error) {
        self.record_failure(error);
        self.state.has_failed.store(true, Ordering::Release);
    }

    /// Returns the first failure that has been recorded, if any.
    pub fn failure(&self) -> Option<Error> {
        self.state.failure.lock().clone()
    }

    /// Records a failure that a new session may fix, without stopping the threads.
    pub(crate) fn record_failure(&self, error: Error) {
        self.state.failure.lock().get_or_insert(error);
    }

    /// Removes the failure and returns it, so that threads can run again.
    pub(super) fn take_failure(&self) -> Option<Error> {
        self.state.has_failed.store(false, Ordering::Release);
        self.state.failure.lock().take()
    }

    /// Starts a thread that [`Coordinator::join`] waits for. An error returned by the thread stops all
    /// threads.
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
        let mut threads = self.state.threads.lock();
        threads.retain(|(_, thread)| !thread.is_finished());
        threads.push((name.to_owned(), thread));
        Ok(())
    }

    /// Waits until all threads have ended.
    ///
    /// # Errors
    /// The failure that stopped the threads, or `ThreadsStillRunning` with the names of those that did not end in time.
    pub fn join(&self, grace: Duration) -> Result<()> {
        let started = Instant::now();
        let threads = std::mem::take(&mut *self.state.threads.lock());
        while threads.iter().any(|(_, t)| !t.is_finished()) && started.elapsed() < grace {
            thread::park_timeout(Duration::from_millis(1));
        }
        let late: Vec<String> =
            threads.iter().filter(|(_, t)| !t.is_finished()).map(|(name, _)| name.clone()).collect();
        if !late.is_empty() {
            return Err(Error::ThreadsStillRunning { waited: started.elapsed(), names: late });
        }
        self.failure().map_or(Ok(()), Err)
    }
}
