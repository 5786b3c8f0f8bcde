//! Blocking calls to the store of an election. The calls run on a Tokio runtime of their own, because the calling
//! thread blocks and may belong to another runtime.

use crate::error::{Error, Result};
use graph::Code;
use proto::Status;
use std::fmt::Display;
use std::future::Future;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// The time limit of a call that does not renew a lease.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time from the end of a call's time limit until the runtime must have reported the timeout.
const MARGIN: Duration = Duration::from_secs(1);

/// The runner of blocking calls to one election store, with its own Tokio runtime.
#[derive(Debug)]
pub(super) struct StoreCalls {
    /// The description of the store in error messages.
    description: String,
    /// The time limit of all calls of one renewal of a lease together.
    renewal_timeout: Duration,
    /// The runtime on which the calls run; `None` during drop.
    runtime: Option<Runtime>,
}

impl StoreCalls {
    /// Starts the runtime for calls to a store. Error messages describe the store by `description`; a leader's lease
    /// lasts for `lease`.
    pub(super) fn new(description: String, lease: Duration) -> Result<StoreCalls> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("elections").enable_all().build();
        let runtime = runtime.map_err(|e| Error::file(&description, &e))?;
        Ok(StoreCalls { description, renewal_timeout: (lease / 2).min(CALL_TIMEOUT), runtime: Some(runtime) })
    }

    /// Sets the description of the store in error messages.
    pub(super) fn set_description(&mut self, description: String) {
        self.description = description;
    }

    /// Returns the description of the store in error messages.
    pub(super) fn description(&self) -> &str {
        &self.description
    }

    /// Returns the time limit of all calls of one renewal together. The limit leaves time for a second try within the
    /// lease.
    pub(super) fn renewal_timeout(&self) -> Duration {
        self.renewal_timeout
    }

    /// Runs the future `call` on the runtime, and blocks until it ends or `time_limit` has passed.
    ///
    /// # Errors
    /// `Unavailable` with the store's description, if the call takes longer than `time_limit`.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        time_limit: Duration,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = mpsc::sync_channel(1);
        if let Some(runtime) = &self.runtime {
            runtime.spawn(async move {
                // Sending fails only if the waiting thread, which owns the receiver, has ended.
                let _ = answer.send(timeout(time_limit, call).await);
            });
        }
        // The runtime cannot time out a call that blocks its thread, so `recv_timeout` has a limit too.
        match answered.recv_timeout(time_limit + MARGIN) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(RecvTimeoutError::Timeout) => {
                Err(self.call_error(Code::Unavailable, format!("no answer within {time_limit:?}")))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(self.call_error(Code::Unavailable, "the call ended without an answer"))
            }
        }
    }

    /// Returns the error of a failed call, with the status code `code`, the store's description and `cause`.
    pub(super) fn call_error(&self, code: Code, cause: impl Display) -> Error {
        Error::Client(client::Error::Status(Status::new(code, format!("{}: {cause}", self.description))))
    }
}

impl Drop for StoreCalls {
    fn drop(&mut self) {
        // The shutdown does not wait for the runtime's threads, because a drop on a thread of another runtime may not
        // block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
