//! A thread that waits for marks, so that nobody else has to.

use super::streams::Mark;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What to do once a mark is reached.
type Then = Box<dyn FnOnce(Result<()>) + Send>;

/// Waits for the marks of one stream, in their order.
#[derive(Debug)]
pub(super) struct Waiter(Mutex<Sender<(Arc<Mark>, Then)>>);

impl Waiter {
    pub(super) fn new(name: &str) -> Result<Waiter> {
        let (sender, receiver) = channel();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || wait(&receiver))
            .map_err(|error| Error::internal(format!("no thread to wait for a GPU: {error}")))?;
        Ok(Waiter(Mutex::new(sender)))
    }

    /// Calls `then` on the waiter's thread once the mark is reached, or with why it never will be.
    pub(super) fn after(&self, mark: Arc<Mark>, then: impl FnOnce(Result<()>) + Send + 'static) {
        let sent = self.0.lock().send((mark, Box::new(then)));
        if let Err(unsent) = sent {
            let (mark, then) = unsent.0;
            then(mark.wait_here());
        }
    }
}

/// Until the waiter is dropped.
fn wait(marks: &Receiver<(Arc<Mark>, Then)>) {
    while let Ok((mark, then)) = marks.recv() {
        then(mark.wait_here());
    }
}
