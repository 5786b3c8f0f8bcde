//! Why a step, or the registration of a graph, failed.

use graph::{Code, Node};
use std::any::Any;

/// A failure, with as much of its place as the layers it passed knew.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A kernel failed at a node, or what it called did. Clients parse the tag.
    #[error("{message}\n\t [[{}]]", tag(node, message))]
    Node { code: Code, node: String, message: String },

    /// A failure that no node is to blame for, or that has not been given one yet.
    #[error("{message}")]
    Status { code: Code, message: String },

    /// What follows from another failure: never to be reported where its cause is known.
    #[error("{0}")]
    Derived(Box<Error>),

    #[error(transparent)]
    Graph(#[from] graph::Error),
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error::Status { code, message: message.into() }
    }

    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(Code::InvalidArgument, message)
    }

    pub fn unimplemented(message: impl Into<String>) -> Error {
        Error::new(Code::Unimplemented, message)
    }

    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(Code::Internal, message)
    }

    /// The error of a kernel that panicked with this payload.
    pub fn panicked(node: &Node, payload: &(dyn Any + Send)) -> Error {
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        Error::internal(format!("the kernel of {} panicked: {text}", node.op.name()))
    }

    pub fn code(&self) -> Code {
        match self {
            Error::Node { code, .. } | Error::Status { code, .. } => *code,
            Error::Derived(cause) => cause.code(),
            Error::Graph(error) => error.code(),
        }
    }

    pub fn is_derived(&self) -> bool {
        matches!(self, Error::Derived(_))
    }

    /// The same failure marked as a consequence.
    pub fn derived(self) -> Error {
        match self {
            Error::Derived(_) => self,
            other => Error::Derived(Box::new(other)),
        }
    }

    /// The same failure with the node's name; after those of the nodes that failed within what this one called.
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

/// How a message names a node: the first one so that clients find where it was made.
fn tag(node: &str, message: &str) -> String {
    if message.contains("{{node ") { node.to_owned() } else { format!("{{{{node {node}}}}}") }
}

impl From<checkpoint::Error> for Error {
    fn from(error: checkpoint::Error) -> Error {
        match error {
            checkpoint::Error::Graph(error) => Error::Graph(error),
            other => Error::new(other.code(), other.to_string()),
        }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// `Err(InvalidArgument)` with a formatted message.
#[macro_export]
macro_rules! invalid {
    ($($arg:tt)*) => { return Err($crate::Error::invalid(format!($($arg)*))) };
}
