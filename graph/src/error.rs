//! The error type of this crate, and the status codes that all layers use.

use crate::dtype::DType;

/// Status codes with the numbers of gRPC and TensorFlow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// Returns the code with this number; other numbers become `Unknown`.
    pub fn from_number(number: i32) -> Code {
        use Code::*;
        const ALL: [Code; 17] = [
            Ok,
            Cancelled,
            Unknown,
            InvalidArgument,
            DeadlineExceeded,
            NotFound,
            AlreadyExists,
            PermissionDenied,
            ResourceExhausted,
            FailedPrecondition,
            Aborted,
            OutOfRange,
            Unimplemented,
            Internal,
            Unavailable,
            DataLoss,
            Unauthenticated,
        ];
        usize::try_from(number).ok().and_then(|n| ALL.get(n).copied()).unwrap_or(Unknown)
    }

    /// Returns the code's number.
    pub fn number(self) -> i32 {
        self as i32
    }
}

/// An error in a graph, or in an attribute, a shape or a tensor of a graph.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// An error at a node; the message ends with the `{{node …}}` marker that clients parse.
    #[error("{message}\n\t [[{{{{node {node}}}}}]]")]
    Node { code: Code, node: String, message: String },

    /// A missing op and a node that uses it; `others` are the names of the graph's other missing ops.
    #[error(
        "Op type not registered '{op}' in this server's binary. The node that uses it is {{{{node {node}}}}}{}; \
         docs/OPS.md lists the ops that are there",
        others_missing(others)
    )]
    UnknownOp { node: String, op: String, others: String },

    #[error("Node '{node}': Unknown input node '{input}'")]
    UnknownInput { node: String, input: String },

    #[error("Node name '{node}' already exists in the Graph")]
    DuplicateName { node: String },

    #[error("The graph has a cycle that no NextIteration closes, through node {{{{node {node}}}}}")]
    Cycle { node: String },

    #[error("Malformed device specification '{spec}'{place}", place = in_node(node))]
    MalformedDevice { spec: String, node: Option<String> },

    #[error("OOM when allocating {bytes} bytes: {live} of {limit} bytes of host memory are in use")]
    OutOfMemory { bytes: u128, live: u64, limit: u64 },

    #[error("No gradient is defined for op '{op}' (node {{{{node {node}}}}})")]
    NoGradient { node: String, op: String },

    #[error("expected a tensor of {expected}, got {actual}")]
    DType { expected: DType, actual: DType },

    #[error("{message}")]
    Invalid { code: Code, message: String },

    #[error("line {line}: {message}")]
    Text { line: usize, message: String },
}

/// Returns the suffix of an error message that names the node; empty if the node is unknown.
fn in_node(node: &Option<String>) -> String {
    node.as_ref().map(|n| format!(" in node: {{{{node {n}}}}}")).unwrap_or_default()
}

fn others_missing(others: &str) -> String {
    if others.is_empty() { String::new() } else { format!("; the graph's other missing ops are {others}") }
}

impl Error {
    /// Returns the error for a node whose op does not exist.
    pub(crate) fn unknown_op(node: impl Into<String>, op: impl Into<String>) -> Error {
        Error::UnknownOp { node: node.into(), op: op.into(), others: String::new() }
    }

    /// Returns an `InvalidArgument` error.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::Invalid { code: Code::InvalidArgument, message: message.into() }
    }

    /// Returns an `Unimplemented` error.
    pub fn unimplemented(message: impl Into<String>) -> Error {
        Error::Invalid { code: Code::Unimplemented, message: message.into() }
    }

    /// Returns the error with the node's name added, unless it names a node already.
    pub fn at_node(self, node: &str) -> Error {
        match self {
            Error::Invalid { code, message } => Error::Node { code, node: node.to_owned(), message },
            Error::DType { .. } | Error::OutOfMemory { .. } => {
                Error::Node { code: self.code(), node: node.to_owned(), message: self.to_string() }
            }
            Error::MalformedDevice { spec, node: None } => {
                Error::MalformedDevice { spec, node: Some(node.to_owned()) }
            }
            other => other,
        }
    }

    /// Returns the status code of the error.
    pub fn code(&self) -> Code {
        match self {
            Error::Node { code, .. } | Error::Invalid { code, .. } => *code,
            Error::UnknownOp { .. } => Code::NotFound,
            Error::OutOfMemory { .. } => Code::ResourceExhausted,
            Error::NoGradient { .. } => Code::Unimplemented,
            Error::UnknownInput { .. }
            | Error::DuplicateName { .. }
            | Error::Cycle { .. }
            | Error::MalformedDevice { .. }
            | Error::DType { .. }
            | Error::Text { .. } => Code::InvalidArgument,
        }
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Error {
        match never {}
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns `Err(InvalidArgument)` with a formatted message from the current function.
#[macro_export]
macro_rules! invalid {
    ($($arg:tt)*) => { return Err($crate::Error::invalid(format!($($arg)*))) };
}
