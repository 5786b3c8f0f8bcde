//! How a failure looks on its way between processes: a code, a text, and whether it only follows from another.

use graph::Code;

/// Marks a failure as a consequence of another, in the payloads of a status.
pub const DERIVED_STATUS: &str = "type.googleapis.com/tensorflow.DerivedStatus";
/// Says that the worker lost its state since the caller last spoke to it.
pub const WORKER_POSSIBLY_RESTARTED: &str =
    "type.googleapis.com/tensorflow.distributed_runtime.WorkerPossiblyRestarted";

/// A failure with its structure: receivers decide by `code`, `derived` and `restarted`, never by the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    pub code: Code,
    pub message: String,
    /// Follows from another failure, which is the one to report.
    pub derived: bool,
    /// The worker has no memory of the session: it was probably restarted.
    pub restarted: bool,
}

impl Status {
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status { code, message: message.into(), derived: false, restarted: false }
    }

    pub fn invalid(message: impl Into<String>) -> Status {
        Status::new(Code::InvalidArgument, message)
    }

    pub fn derived(mut self) -> Status {
        self.derived = true;
        self
    }

    pub fn restarted(mut self) -> Status {
        self.restarted = true;
        self
    }
}

impl From<graph::Error> for Status {
    fn from(error: graph::Error) -> Status {
        Status::new(error.code(), error.to_string())
    }
}
