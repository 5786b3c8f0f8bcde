//! The status of a failed call between processes: a code, a text, and whether the failure only follows from
//! another.

use graph::Code;

/// Payload URL that marks a failure as a consequence of another.
pub const DERIVED_STATUS: &str = "type.googleapis.com/tensorflow.DerivedStatus";
/// Payload URL that reports that the worker lost its state since the caller's last call.
pub const WORKER_POSSIBLY_RESTARTED: &str =
    "type.googleapis.com/tensorflow.distributed_runtime.WorkerPossiblyRestarted";

/// A failure with its flags. Receivers decide by `code`, `derived` and `restarted`, never by the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    pub code: Code,
    pub message: String,
    /// Set if the failure follows from another, which is the one to report.
    pub derived: bool,
    /// Set if the worker does not know the session, so it was probably restarted.
    pub restarted: bool,
}

impl Status {
    /// Creates a status without flags.
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status { code, message: message.into(), derived: false, restarted: false }
    }

    /// Creates an `InvalidArgument` status.
    pub fn invalid(message: impl Into<String>) -> Status {
        Status::new(Code::InvalidArgument, message)
    }

    /// Returns the status with `derived` set.
    pub fn derived(mut self) -> Status {
        self.derived = true;
        self
    }

    /// Returns the status with `restarted` set.
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
