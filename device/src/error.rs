//! Errors of steps and of the registration of graphs.

use graph::{Code, Node};
use std::any::Any;

/// An error of a step, with the name of the failed node if it is known.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The failure of a node's kernel, or of a function that the kernel called. Clients parse the tag with the node's
    /// name.
    #[error("{message}\n\t {}", tag(node, message))]
    Node { code: Code, node: String, message: String },

    /// A failure that is not, or not yet, attributed to a node.
    #[error("{message}")]
    Status { code: Code, message: String },

    /// A consequence of another failure, which is reported only if its cause is unknown.
    #[error("{0}")]
    Derived(Box<Error>),

    #[error(transparent)]
    Graph(#[from] graph::Error),
}

impl Error {
    /// Creates an error that is not attributed to a node.
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error::Status { code, message: message.into() }
    }

    /// Creates an `InvalidArgument` error.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(Code::InvalidArgument, message)
    }

    /// Creates an `Unimplemented` error.
    pub fn unimplemented(message: impl Into<String>) -> Error {
        Error::new(Code::Unimplemented, message)
    }

    /// Creates an `Internal` error.
    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(Code::Internal, message)
    }

    /// Creates the `Internal` error for a kernel that panicked with this payload.
    pub fn panicked(node: &Node, payload: &(dyn Any + Send)) -> Error {
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        Error::internal(format!("the kernel of {} panicked: {text}", node.op.name()))
    }

    /// Returns the status code; for a consequence, the code of its cause.
    pub fn code(&self) -> Code {
        match self {
            Error::Node { code, .. } | Error::Status { code, .. } => *code,
            Error::Derived(cause) => cause.code(),
            Error::Graph(error) => error.code(),
        }
    }

    /// Returns whether the error is a consequence of another failure.
    pub fn is_derived(&self) -> bool {
        matches!(self, Error::Derived(_))
    }

    /// Marks the error as a consequence of another failure.
    pub fn derived(self) -> Error {
        match self {
            Error::Derived(_) => self,
            other => Error::Derived(Box::new(other)),
        }
    }

    /// Attributes the error to a node. If nodes of a called function failed before, their names come first in the
    /// message.
    pub fn at_node(self, node: &str) -> Error {
        match self {
            Error::Derived(cause) => Error::Derived(Box::new(cause.at_node(node))),
            Error::Graph(error) if !matches!(error, graph::Error::Node { .. }) => {
                Error::Graph(error.at_node(node))
            }
            Error::Status { .. } | Error::Node { .. } | Error::Graph(_) => {
                Error::Node { code: self.code(), node: node.to_owned(), message: self.to_string() }
            }
        }
    }
}

/// Returns the node's tag in a message. Only the first tag has the form `{{node name}}`, by which clients find the
/// Python line that created the node. A node of the debugger has no tag, because its name, with a colon, is a tensor's name
/// to clients, which look for a node in every tag.
fn tag(node: &str, message: &str) -> String {
    match node {
        debug if debug.contains(':') => format!("(node {debug})"),
        inner if message.contains("{{node ") => format!("[[{inner}]]"),
        node => format!("[[{{{{node {node}}}}}]]"),
    }
}

impl From<checkpoint::Error> for Error {
    fn from(error: checkpoint::Error) -> Error {
        match error {
            checkpoint::Error::Graph(error) => Error::Graph(error),
            other => Error::new(other.code(), other.to_string()),
        }
    }
}

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns `Err(InvalidArgument)` with a formatted message from the enclosing function.
#[macro_export]
macro_rules! invalid {
    ($($arg:tt)*) => { return Err($crate::Error::invalid(format!($($arg)*))) };
}
