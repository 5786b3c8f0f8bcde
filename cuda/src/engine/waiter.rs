//! A thread that waits, for marks most of all, so that nobody else has to.

use super::streams::Mark;
use device::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};

type Job = Box<dyn FnOnce() + Send>;

/// Does what may wait, in its order: it waits for the marks of one stream.
#[derive(Debug)]
pub(super) struct Waiter(Mutex<Sender<Job>>);

impl Waiter {
    pub(super) fn new(name: &str) -> Result<Waiter> {
        let (sender, receiver) = channel();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&receiver))
            .map_err(|error| Error::internal(format!("no thread to wait for a GPU: {error}")))?;
        Ok(Waiter(Mutex::new(sender)))
    }

    /// Calls `then` on the waiter's thread once the mark is reached, or with why it never will be.
    pub(super) fn after(&self, mark: Arc<Mark>, then: impl FnOnce(Result<()>) + Send + 'static) {
        self.run(move || then(mark.wait_here()));
    }

    /// Calls `job` on the waiter's thread.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let sent = self.0.lock().send(Box::new(job));
        if let Err(SendError(job)) = sent {
            job();
        }
    }
}

/// Until the waiter is dropped.
fn work(jobs: &Receiver<Job>) {
    jobs.iter().for_each(|job| job());
}
