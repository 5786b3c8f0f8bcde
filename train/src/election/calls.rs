//! Calls to a store elsewhere, on a runtime of its own: who calls may belong to another, and waits.

use crate::error::{Error, Result};
use graph::Code;
use proto::Status;
use std::fmt::Display;
use std::future::Future;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// How long a call may take of who has no turn to keep.
pub(super) const LONGEST: Duration = Duration::from_secs(5);

/// A timeout comes no later.
const MARGIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Calls {
    place: String,
    in_turn: Duration,
    /// `None` once it ends.
    runtime: Option<Runtime>,
}

impl Calls {
    /// To a place of which messages speak like this, where a leader's turn is kept for so long.
    pub(super) fn new(place: String, lease: Duration) -> Result<Calls> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("elections").enable_all().build();
        let runtime = runtime.map_err(|e| Error::file(&place, &e))?;
        Ok(Calls { place, in_turn: (lease / 2).min(LONGEST), runtime: Some(runtime) })
    }

    /// Speaks otherwise of the place from now on.
    pub(super) fn are_to(&mut self, place: String) {
        self.place = place;
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// How long all the calls may take by which a leader keeps a turn once: there is time for another try before it is
    /// lost.
    pub(super) fn in_turn(&self) -> Duration {
        self.in_turn
    }

    /// Runs a call to its end.
    ///
    /// # Errors
    /// `Unavailable`, naming the place, if that takes longer than `patience`.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        patience: Duration,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = mpsc::sync_channel(1);
        if let Some(runtime) = &self.runtime {
            runtime.spawn(async move {
                // The receiver is gone only if the waiting thread is.
                let _ = answer.send(timeout(patience, call).await);
            });
        }
        // A call that blocks its thread has no timeout of its own.
        match answered.recv_timeout(patience + MARGIN) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(RecvTimeoutError::Timeout) => {
                Err(self.failed(Code::Unavailable, format!("no answer within {patience:?}")))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(self.failed(Code::Unavailable, "the call ended without an answer"))
            }
        }
    }

    /// That a call failed, naming the place.
    pub(super) fn failed(&self, code: Code, cause: impl Display) -> Error {
        Error::Client(client::Error::Status(Status::new(code, format!("{}: {cause}", self.place))))
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        // Without waiting: a thread of another runtime may not.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
