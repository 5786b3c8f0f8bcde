//! A thread that waits for events, so that threads of the executor need not block.

use super::streams::Mark;
use device::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};

type Job = Box<dyn FnOnce() + Send>;

/// A thread that runs blocking jobs in order, such as waits for the events of one stream.
#[derive(Debug)]
pub(super) struct WaiterThread(Mutex<Sender<Job>>);

impl WaiterThread {
    /// Starts a thread of this name.
    pub(super) fn new(name: &str) -> Result<WaiterThread> {
        let (sender, receiver) = channel();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run_jobs(&receiver))
            .map_err(|error| Error::internal(format!("no thread to wait for a GPU: {error}")))?;
        Ok(WaiterThread(Mutex::new(sender)))
    }

    /// Calls `then` on the waiter thread when the event has completed; `then` gets the error if the wait fails.
    pub(super) fn run_after(&self, mark: Arc<Mark>, then: impl FnOnce(Result<()>) + Send + 'static) {
        self.run(move || then(mark.wait_on_host()));
    }

    /// Queues `job` to be run on the waiter thread.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let sent = self.0.lock().send(Box::new(job));
        if let Err(SendError(job)) = sent {
            job();
        }
    }
}

/// Runs jobs until the sender is dropped.
fn run_jobs(jobs: &Receiver<Job>) {
    jobs.iter().for_each(|job| job());
}
