//! Errors of checkpoint files and of the values written to them.

use graph::Code;
use std::io;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The operating system refused the operation; the message has TensorFlow's form.
    #[error("{path}; {reason}")]
    File { code: Code, path: String, reason: String },

    /// The contents of the file are damaged.
    #[error("{path}: {what}")]
    Corrupt { path: String, what: String },

    #[error("Key {key} not found in checkpoint")]
    MissingKey { key: String },

    #[error("{message}")]
    Invalid { code: Code, message: String },

    #[error(transparent)]
    Graph(#[from] graph::Error),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates the error of a failed operation of the operating system on a file.
    pub fn file(path: impl AsRef<Path>, error: &io::Error) -> Error {
        let text = error.to_string();
        let reason = text.split(" (os error").next().unwrap_or(&text).to_owned();
        Error::File { code: code_of(error), path: path.as_ref().display().to_string(), reason }
    }

    /// Creates the error of a damaged file, with a description of the damage.
    pub fn corrupt(path: impl AsRef<Path>, what: impl Into<String>) -> Error {
        Error::Corrupt { path: path.as_ref().display().to_string(), what: what.into() }
    }

    /// Creates an `InvalidArgument` error.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::Invalid { code: Code::InvalidArgument, message: message.into() }
    }

    /// Creates an `Unimplemented` error.
    pub fn unimplemented(message: impl Into<String>) -> Error {
        Error::Invalid { code: Code::Unimplemented, message: message.into() }
    }

    /// Returns the status code of the error.
    pub fn code(&self) -> Code {
        match self {
            Error::File { code, .. } | Error::Invalid { code, .. } => *code,
            Error::Corrupt { .. } => Code::DataLoss,
            Error::MissingKey { .. } => Code::NotFound,
            Error::Graph(error) => error.code(),
        }
    }
}

fn code_of(error: &io::Error) -> Code {
    use io::ErrorKind::*;
    match error.kind() {
        NotFound => Code::NotFound,
        AlreadyExists => Code::AlreadyExists,
        PermissionDenied => Code::PermissionDenied,
        InvalidInput | InvalidFilename | ArgumentListTooLong => Code::InvalidArgument,
        IsADirectory | NotADirectory | DirectoryNotEmpty | ReadOnlyFilesystem | ExecutableFileBusy
        | ResourceBusy => Code::FailedPrecondition,
        StorageFull | QuotaExceeded | OutOfMemory | TooManyLinks | FileTooLarge => Code::ResourceExhausted,
        Interrupted
        | WouldBlock
        | ConnectionRefused
        | ConnectionReset
        | ConnectionAborted
        | NotConnected
        | BrokenPipe
        | StaleNetworkFileHandle => Code::Unavailable,
        Deadlock => Code::Aborted,
        Unsupported => Code::Unimplemented,
        TimedOut => Code::DeadlineExceeded,
        InvalidData | UnexpectedEof => Code::DataLoss,
        _ => Code::Unknown,
    }
}

/// Returns `Err(InvalidArgument)` with a formatted message from the calling function.
macro_rules! invalid {
    ($($arg:tt)*) => { return Err($crate::Error::invalid(format!($($arg)*))) };
}
pub(crate) use invalid;
