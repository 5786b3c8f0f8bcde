//! Requests to stores. They are made by a separate runtime, and blocking threads wait for them up to a
//! deadline.

use super::Remote;
use crate::error::{Error, Result};
use graph::Code;
use object_store::Result as Answer;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::error::Elapsed;

/// Default time limit of a request, including all attempts; `ANABRANCH_STORE_DEADLINE` overrides it, in
/// seconds.
const DEADLINE: Duration = Duration::from_secs(60);

/// Number of threads of the shared runtime. The threads wait for the network and encrypt data.
const THREADS: usize = 2;

static CONFIGURED_DEADLINE: OnceLock<Duration> = OnceLock::new();

pub(super) fn deadline() -> Duration {
    *CONFIGURED_DEADLINE.get().unwrap_or(&DEADLINE)
}

/// Reads the deadline from the environment, before the first store is opened.
///
/// # Errors
/// `InvalidArgument` if the value is not a number of seconds.
pub(super) fn read_deadline() -> Result<()> {
    if let Some(configured) = std::env::var_os("ANABRANCH_STORE_DEADLINE") {
        let seconds = configured.to_str().and_then(|text| text.parse().ok());
        let no_number =
            || Error::invalid(format!("ANABRANCH_STORE_DEADLINE is {configured:?}, no number of seconds"));
        let seconds = seconds.ok_or_else(no_number)?;
        CONFIGURED_DEADLINE.get_or_init(|| Duration::from_secs(seconds));
    }
    Ok(())
}

/// Returns the runtime of all requests of this process.
///
/// # Errors
/// `ResourceExhausted` if the operating system cannot start its threads.
pub(super) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<std::io::Result<Runtime>> = OnceLock::new();
    let start =
        || Builder::new_multi_thread().worker_threads(THREADS).thread_name("store").enable_all().build();
    RUNTIME.get_or_init(start).as_ref().map_err(|e| Error::Invalid {
        code: Code::ResourceExhausted,
        message: format!("no thread for requests to stores: {e}"),
    })
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct Request<T> {
    remote: Remote,
    path: PathBuf,
    answer: Receiver<Result<Answer<T>, Elapsed>>,
    task: JoinHandle<()>,
}

impl<T: Send + 'static> Request<T> {
    /// Starts a request; `path` is the name that errors report.
    pub(super) fn start(
        remote: &Remote,
        path: &Path,
        request: impl Future<Output = Answer<T>> + Send + 'static,
    ) -> Result<Request<T>> {
        let (sender, answer) = sync_channel(1);
        let task = runtime()?.spawn(async move {
            // The receiver is gone if the caller dropped the file.
            let _ = sender.send(tokio::time::timeout(deadline(), request).await);
        });
        Ok(Request { remote: remote.clone(), path: path.to_owned(), answer, task })
    }

    /// Waits for the response.
    ///
    /// # Errors
    /// `DeadlineExceeded` if the store has not responded in time, otherwise the store's error.
    pub(super) fn wait(self) -> Result<T> {
        match self.answer.recv() {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(error))) => Err(self.remote.error(&self.path, &error)),
            Ok(Err(Elapsed { .. })) => {
                let what = format!("did not answer within {} s", deadline().as_secs());
                Err(self.remote.wrong(&self.path, Code::DeadlineExceeded, what))
            }
            Err(_) => Err(self.remote.wrong(&self.path, Code::Internal, "the request panicked")),
        }
    }

    /// Cancels the request, and returns a handle that completes when it has ended.
    pub(super) fn cancel(self) -> JoinHandle<()> {
        self.task.abort();
        self.task
    }
}
