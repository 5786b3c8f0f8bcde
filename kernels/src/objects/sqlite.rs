//! SQLite databases: opening, and the codes of failures.

use bytes::Bytes;
use device::{Error, Result};
use graph::Code;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::path::Path;
use std::time::Duration;

/// Maximum wait for a lock that another connection holds; then the operation fails with `Unavailable`.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// Opens a database for reading and writing; a file that does not exist is created.
///
/// # Errors
/// `InvalidArgument` if the file cannot be opened.
pub(crate) fn open(path: &Path) -> Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)
        .map_err(|e| failed(&format!("Open() of the database {} failed", path.display()), &e))?;
    connection.busy_timeout(LOCK_LIMIT).map_err(|e| failed("busy_timeout() failed", &e))?;
    connection.authorizer(Some(authorize)).map_err(|e| failed("authorizer() failed", &e))?;
    Ok(connection)
}

/// Denies the settings that concern all connections of the process.
fn authorize(context: AuthContext<'_>) -> Authorization {
    const OF_THE_PROCESS: [&str; 4] =
        ["hard_heap_limit", "soft_heap_limit", "temp_store_directory", "data_store_directory"];
    match context.action {
        AuthAction::Pragma { pragma_name, .. }
            if OF_THE_PROCESS.iter().any(|name| name.eq_ignore_ascii_case(pragma_name)) =>
        {
            Authorization::Deny
        }
        _ => Authorization::Allow,
    }
}

/// Returns the error for a failed operation, with TensorFlow's code for SQLite's; `action` begins the message.
pub(crate) fn failed(action: &str, error: &rusqlite::Error) -> Error {
    let (code, text) = match error {
        rusqlite::Error::SqliteFailure(failure, message) => {
            (Some(failure), message.clone().unwrap_or_else(|| failure.to_string()))
        }
        rusqlite::Error::SqlInputError { error: failure, msg, .. } => (Some(failure), msg.clone()),
        other => (None, other.to_string()),
    };
    match code {
        Some(failure) => {
            let number = failure.extended_code & 0xff;
            Error::new(status(failure.code), format!("{action}: [{number}] {text}"))
        }
        None => Error::invalid(format!("{action}: {text}")),
    }
}

/// Returns TensorFlow's code for a failure of SQLite.
fn status(code: ErrorCode) -> Code {
    match code {
        ErrorCode::OperationAborted => Code::Aborted,
        ErrorCode::ReadOnly | ErrorCode::TypeMismatch => Code::FailedPrecondition,
        ErrorCode::ApiMisuse | ErrorCode::InternalMalfunction => Code::Internal,
        ErrorCode::ParameterOutOfRange => Code::OutOfRange,
        ErrorCode::CannotOpen
        | ErrorCode::ConstraintViolation
        | ErrorCode::NotFound
        | ErrorCode::NotADatabase => Code::InvalidArgument,
        ErrorCode::DatabaseCorrupt => Code::DataLoss,
        ErrorCode::AuthorizationForStatementDenied | ErrorCode::PermissionDenied => Code::PermissionDenied,
        ErrorCode::DiskFull | ErrorCode::TooBig | ErrorCode::NoLargeFileSupport => Code::ResourceExhausted,
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::FileLockingProtocolFailed
        | ErrorCode::OutOfMemory => Code::Unavailable,
        ErrorCode::OperationInterrupted => Code::Cancelled,
        _ => Code::Unknown,
    }
}

/// Returns the parameter for a text in any encoding.
pub(crate) fn text(bytes: &[u8]) -> ToSqlOutput<'_> {
    ToSqlOutput::Borrowed(ValueRef::Text(bytes))
}

/// Returns the parameter for bytes.
pub(crate) fn blob(bytes: &[u8]) -> ToSqlOutput<'_> {
    ToSqlOutput::Borrowed(ValueRef::Blob(bytes))
}

/// Returns a value as an integer, by SQLite's own conversions.
pub(crate) fn integer_of(connection: &Connection, value: ValueRef<'_>) -> Result<i64> {
    match value {
        ValueRef::Null => Ok(0),
        ValueRef::Integer(value) => Ok(value),
        ValueRef::Real(value) => Ok(value as i64),
        other => converted(connection, "SELECT CAST(? AS INTEGER)", other),
    }
}

/// Returns a value as a floating-point number, by SQLite's own conversions.
pub(crate) fn real_of(connection: &Connection, value: ValueRef<'_>) -> Result<f64> {
    match value {
        ValueRef::Null => Ok(0.0),
        ValueRef::Integer(value) => Ok(value as f64),
        ValueRef::Real(value) => Ok(value),
        other => converted(connection, "SELECT CAST(? AS REAL)", other),
    }
}

/// Returns a value as bytes; numbers become decimals.
pub(crate) fn bytes_of(value: ValueRef<'_>) -> Result<Bytes> {
    match value {
        ValueRef::Null => Ok(Bytes::new()),
        ValueRef::Integer(value) => Ok(value.to_string().into()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Ok(Bytes::copy_from_slice(bytes)),
        ValueRef::Real(value) => Ok(real_text(value).into()),
    }
}

/// Returns a number with 15 significant digits and a decimal point. TensorFlow's release of SQLite writes numbers like
/// this; later ones write more digits.
fn real_text(value: f64) -> String {
    if !value.is_finite() {
        return if value > 0.0 { "Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:.14e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (text, suffix) = match exponent {
        -4..=14 => (format!("{value:.*}", (14 - exponent) as usize), String::new()),
        _ => (digits.to_owned(), format!("e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())),
    };
    let short = match text.contains('.') {
        true => text.trim_end_matches('0'),
        false => &text,
    };
    let point = if short.ends_with('.') {
        "0"
    } else if short.contains('.') {
        ""
    } else {
        ".0"
    };
    format!("{short}{point}{suffix}")
}

/// Returns the result of a statement for one value.
fn converted<T: rusqlite::types::FromSql>(
    connection: &Connection,
    statement: &str,
    value: ValueRef<'_>,
) -> Result<T> {
    connection
        .query_row(statement, [ToSqlOutput::Borrowed(value)], |row| row.get(0))
        .map_err(|e| failed("Conversion of a value failed", &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_fifteen_digits_and_a_point() {
        for (number, text) in [
            (1.5, "1.5"),
            (-300.0, "-300.0"),
            (0.1, "0.1"),
            (0.0, "0.0"),
            (1e15, "1.0e+15"),
            (1e14, "100000000000000.0"),
            (-1e300, "-1.0e+300"),
            (1.0 / 3.0, "0.333333333333333"),
            (1.25e-5, "1.25e-05"),
            (0.000125, "0.000125"),
        ] {
            assert_eq!(real_text(number), text);
        }
    }
}
