//! Requests to stores: made by a runtime of their own, waited for by threads that may block, for so long and no longer.

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

/// How long a request may take, with all attempts to make it, unless `ANABRANCH_STORE_DEADLINE` says otherwise (in
/// seconds).
const DEADLINE: Duration = Duration::from_secs(60);

/// Threads that requests share. They wait for the network, and encrypt.
const THREADS: usize = 2;

static SAID: OnceLock<Duration> = OnceLock::new();

pub(super) fn deadline() -> Duration {
    *SAID.get().unwrap_or(&DEADLINE)
}

/// Reads what the environment says of deadlines, before there is a store.
///
/// # Errors
/// `InvalidArgument` if that is no number of seconds.
pub(super) fn read_deadline() -> Result<()> {
    if let Some(said) = std::env::var_os("ANABRANCH_STORE_DEADLINE") {
        let seconds = said.to_str().and_then(|text| text.parse().ok());
        let no_number =
            || Error::invalid(format!("ANABRANCH_STORE_DEADLINE is {said:?}, no number of seconds"));
        let seconds = seconds.ok_or_else(no_number)?;
        SAID.get_or_init(|| Duration::from_secs(seconds));
    }
    Ok(())
}

/// The runtime of all requests of this process.
///
/// # Errors
/// What the operating system says where there is no thread for it.
pub(super) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<std::io::Result<Runtime>> = OnceLock::new();
    let start =
        || Builder::new_multi_thread().worker_threads(THREADS).thread_name("store").enable_all().build();
    RUNTIME.get_or_init(start).as_ref().map_err(|e| Error::Invalid {
        code: Code::ResourceExhausted,
        message: format!("no thread for requests to stores: {e}"),
    })
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Request<T> {
    remote: Remote,
    path: PathBuf,
    answer: Receiver<Result<Answer<T>, Elapsed>>,
    task: JoinHandle<()>,
}

impl<T: Send + 'static> Request<T> {
    /// `path` is what errors name.
    pub(super) fn start(
        remote: &Remote,
        path: &Path,
        request: impl Future<Output = Answer<T>> + Send + 'static,
    ) -> Result<Request<T>> {
        let (sender, answer) = sync_channel(1);
        let task = runtime()?.spawn(async move {
            // Nobody listens where the file was given up.
            let _ = sender.send(tokio::time::timeout(deadline(), request).await);
        });
        Ok(Request { remote: remote.clone(), path: path.to_owned(), answer, task })
    }

    /// # Errors
    /// `DeadlineExceeded` if the store has not answered in time, else what it says.
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

    /// Gives it up, and returns what ends when it has ended.
    pub(super) fn cancel(self) -> JoinHandle<()> {
        self.task.abort();
        self.task
    }
}
