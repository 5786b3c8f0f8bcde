//! The errors of training.

use graph::Code;
use std::time::Duration;

/// A failure of training, or of a thread that runs beside the training steps, such as a queue runner.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The chief has not initialised these variables within the deadline.
    #[error("after {waited:?} these variables have no value: {missing}; is the chief running?", missing = names.join(", "))]
    NotReady { waited: Duration, names: Vec<String> },

    /// A restarted parameter server has lost these variables, and no checkpoint contains them.
    #[error(
        "these variables have lost their values: {missing}; there is no whole checkpoint in {folder} that has them, and a model in training is not initialised again",
        missing = names.join(", ")
    )]
    VariablesLost { names: Vec<String>, folder: String },

    /// A synchronous step did not get enough gradients within the deadline.
    #[error(
        "step {step} waits for gradients of workers {missing:?}: has {have}, needs {need}, after {waited:?}"
    )]
    Stalled { step: i64, have: usize, need: usize, missing: Vec<usize>, waited: Duration },

    /// A worker under bounded staleness has waited too long for the slowest worker.
    #[error(
        "worker {worker} is {ahead} steps ahead of worker {slowest}, {allowed} are allowed, after {waited:?}"
    )]
    TooFarAhead { worker: usize, ahead: i64, slowest: usize, allowed: i64, waited: Duration },

    /// The other workers of an all-reduce job have not joined in time.
    #[error(
        "worker {worker} has waited {waited:?} for the other workers, {workers} with it, to {what}: {cause}"
    )]
    WorkersMissing { worker: usize, workers: usize, what: &'static str, waited: Duration, cause: Box<Error> },

    /// The other workers of an all-reduce job have opened later sessions, and will meet this replica again in a new
    /// session.
    #[error("the other workers have opened new sessions: {cause}")]
    MeetingOver { cause: Box<Error> },

    /// A worker waits for the next epoch of an all-reduce job, which begins when all workers have opened new sessions.
    #[error("a worker waits to join the job after epoch {epoch}")]
    MembershipChanges { epoch: i64 },

    /// A step of an all-reduce job has found no batch on any worker.
    #[error("the inputs of all {workers} workers have ended")]
    InputsEnded { workers: usize },

    /// The loss after a step is infinite or not a number.
    #[error("the loss is {loss} after step {step}")]
    NotANumber { step: i64, loss: f64 },

    /// This replica has become the chief, and continues in a new session.
    #[error("this replica leads '{name}' from now on, in term {term}")]
    Elected { name: String, term: i64 },

    /// Another replica has replaced this one as the chief.
    #[error("this replica does not lead '{name}' any more: its term {term} is over")]
    Deposed { name: String, term: i64 },

    /// The job returned to an earlier step after this replica had left its training loop.
    #[error(
        "the job went back from step {from} to {to} after this replica had finished; started again, it goes on from there"
    )]
    StepsLost { from: i64, to: i64 },

    /// Recovery in new sessions has failed until the recovery deadline.
    #[error("gave up after {retries} retries in {waited:?}: {cause}")]
    RetriesExhausted { retries: u32, waited: Duration, cause: Box<Error> },

    /// Threads of the training session (queue runners, hooks) did not end when training stopped.
    #[error("these threads did not end within {waited:?}: {threads}", threads = names.join(", "))]
    ThreadsStillRunning { waited: Duration, names: Vec<String> },

    /// A thread of the training session has panicked.
    #[error("the thread {thread} has panicked")]
    Panicked { thread: String },

    #[error(transparent)]
    Client(#[from] client::Error),

    #[error(transparent)]
    Graph(#[from] graph::Error),

    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),

    /// An event file could not be written.
    #[error(transparent)]
    Events(std::sync::Arc<device::Error>),
}

/// The result of a training operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the status code of the error.
    pub fn code(&self) -> Code {
        match self {
            Error::NotReady { .. }
            | Error::Stalled { .. }
            | Error::TooFarAhead { .. }
            | Error::WorkersMissing { .. }
            | Error::ThreadsStillRunning { .. } => Code::DeadlineExceeded,
            Error::VariablesLost { .. } => Code::DataLoss,
            Error::NotANumber { .. } => Code::InvalidArgument,
            Error::InputsEnded { .. } => Code::OutOfRange,
            Error::Elected { .. }
            | Error::Deposed { .. }
            | Error::StepsLost { .. }
            | Error::MeetingOver { .. }
            | Error::MembershipChanges { .. } => Code::Aborted,
            Error::Panicked { .. } => Code::Internal,
            Error::RetriesExhausted { cause, .. } => cause.code(),
            Error::Client(error) => error.code(),
            Error::Graph(error) => error.code(),
            Error::Checkpoint(error) => error.code(),
            Error::Events(error) => error.code(),
        }
    }

    /// Returns whether training may continue in a new session after this error: a task has died or has been restarted,
    /// or this replica has become or ceased to be the chief.
    pub fn is_transient(&self) -> bool {
        matches!(self.code(), Code::Aborted | Code::Unavailable)
    }

    /// Returns whether the error means that a variable or resource has no value or does not exist.
    pub(crate) fn is_missing_value(&self) -> bool {
        matches!(self.code(), Code::NotFound | Code::FailedPrecondition)
    }

    /// Returns the error of a file operation, with the file's path.
    pub(crate) fn file(path: impl AsRef<std::path::Path>, error: &std::io::Error) -> Error {
        Error::Checkpoint(checkpoint::Error::file(path, error))
    }
}
