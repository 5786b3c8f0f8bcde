//! The error type of clients.

use graph::Code;
use proto::Status;

/// An error of a session, of a step, or of a graph that was not sent yet.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// An error of the master, a worker or a kernel. The text names task, node and op as far as they are
    /// known.
    #[error("{0}")]
    Status(Status),

    #[error(transparent)]
    Graph(#[from] graph::Error),

    #[error("'{target}' is no address of a master: expected grpc://host:port")]
    Target { target: String },

    #[error("the session is closed")]
    Closed,
}

impl Error {
    /// Returns the status code of the error, which TensorFlow's clients have too.
    pub fn code(&self) -> Code {
        match self {
            Error::Status(status) => status.code,
            Error::Graph(error) => error.code(),
            Error::Target { .. } => Code::InvalidArgument,
            Error::Closed => Code::FailedPrecondition,
        }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Error {
        Error::Status(status)
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
