//! What commands print.

use std::io::{self, ErrorKind, Write};

/// Prints to standard output, as far as anybody reads it.
pub(crate) fn print(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
