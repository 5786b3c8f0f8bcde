//! What a client is told when something failed.

use graph::Code;
use proto::Status;

/// A failure of a session or a step, or of the graph before it was sent.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The master, a worker or a kernel failed; the text names task, node and op as far as they are known.
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
