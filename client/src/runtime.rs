//! The shared runtime of blocking sessions: one small tokio runtime for each process, started at first use.

use crate::error::{Error, Result};
use graph::Code;
use proto::Status;
use std::future::Future;
use std::sync::{OnceLock, mpsc};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// Returns the handle of the shared runtime, which the first call starts.
///
/// # Errors
/// `Internal` if the operating system cannot start its threads.
pub(crate) fn handle() -> Result<&'static Handle> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("anabranch-session")
            .enable_all()
            .build()
            .map_err(|e| e.to_string())
    });
    match runtime {
        Ok(runtime) => Ok(runtime.handle()),
        Err(e) => Err(Error::Status(Status::new(Code::Internal, format!("no threads for sessions: {e}")))),
    }
}

/// Runs a future on the runtime and blocks until it is ready. The calling thread may belong to another
/// runtime.
pub(crate) fn wait<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Result<T> {
    let (answer, answered) = mpsc::sync_channel(1);
    handle()?.spawn(async move {
        // Sending fails only if the waiting thread has ended.
        let _ = answer.send(future.await);
    });
    answered
        .recv()
        .map_err(|_| Error::Status(Status::new(Code::Internal, "the session's call ended without an answer")))
}

/// Runs a future on the runtime from asynchronous code of any runtime. Dropping the returned future cancels
/// it.
pub(crate) async fn run<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Result<T> {
    let mut task = AbortOnDrop(handle()?.spawn(future));
    let ended = (&mut task.0).await;
    ended.map_err(|e| Error::Status(Status::new(Code::Internal, format!("the session's call ended: {e}"))))
}

/// A spawned task that is aborted when its handle is dropped.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
