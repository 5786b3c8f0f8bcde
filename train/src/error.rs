//! What may go wrong around training steps.

use graph::Code;
use std::time::Duration;

/// A failure of training, or of what is around it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("after {waited:?} these variables have no value: {missing}; is the chief running?", missing = names.join(", "))]
    NotReady { waited: Duration, names: Vec<String> },

    /// A parameter server came back empty, and there is nothing to restore its variables from.
    #[error(
        "these variables have lost their values: {missing}; there is no whole checkpoint in {folder} that has them, and a model in training is not initialised again",
        missing = names.join(", ")
    )]
    Lost { names: Vec<String>, folder: String },

    #[error(
        "step {step} waits for gradients of workers {missing:?}: has {have}, needs {need}, after {waited:?}"
    )]
    Stalled { step: i64, have: usize, need: usize, missing: Vec<usize>, waited: Duration },

    #[error(
        "worker {worker} is {ahead} steps ahead of worker {slowest}, {allowed} are allowed, after {waited:?}"
    )]
    Ahead { worker: usize, ahead: i64, slowest: usize, allowed: i64, waited: Duration },

    #[error("the loss is {loss} after step {step}")]
    NotANumber { step: i64, loss: f64 },

    /// Whoever leads goes on in a session of its own.
    #[error("this replica leads '{name}' from now on, in term {term}")]
    Elected { name: String, term: i64 },

    #[error("this replica does not lead '{name}' any more: its term {term} is over")]
    Deposed { name: String, term: i64 },

    #[error(
        "the job went back from step {from} to {to} after this replica had finished; started again, it goes on from there"
    )]
    WentBack { from: i64, to: i64 },

    #[error("gave up after {retries} retries in {waited:?}: {cause}")]
    GaveUp { retries: u32, waited: Duration, cause: Box<Error> },

    /// A thread that runs beside the steps did not end when it was asked to.
    #[error("these threads did not end within {waited:?}: {threads}", threads = names.join(", "))]
    Threads { waited: Duration, names: Vec<String> },

    #[error("the thread {thread} has panicked")]
    Panicked { thread: String },

    #[error(transparent)]
    Client(#[from] client::Error),

    #[error(transparent)]
    Graph(#[from] graph::Error),

    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),

    /// An event file cannot be written.
    #[error(transparent)]
    Events(std::sync::Arc<device::Error>),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Error::NotReady { .. } | Error::Stalled { .. } | Error::Ahead { .. } | Error::Threads { .. } => {
                Code::DeadlineExceeded
            }
            Error::Lost { .. } => Code::DataLoss,
            Error::NotANumber { .. } => Code::InvalidArgument,
            Error::Elected { .. } | Error::Deposed { .. } | Error::WentBack { .. } => Code::Aborted,
            Error::Panicked { .. } => Code::Internal,
            Error::GaveUp { cause, .. } => cause.code(),
            Error::Client(error) => error.code(),
            Error::Graph(error) => error.code(),
            Error::Checkpoint(error) => error.code(),
            Error::Events(error) => error.code(),
        }
    }

    /// Whether a new session may succeed where this one failed: a task has gone, or is another process now, or this
    /// replica's part is another.
    pub fn is_transient(&self) -> bool {
        matches!(self.code(), Code::Aborted | Code::Unavailable)
    }

    /// Whether something that was looked for has no value, or is not there.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(self.code(), Code::NotFound | Code::FailedPrecondition)
    }

    pub(crate) fn file(path: impl AsRef<std::path::Path>, error: &std::io::Error) -> Error {
        Error::Checkpoint(checkpoint::Error::file(path, error))
    }
}
