//! Output of the commands.

use std::io::{self, ErrorKind, Write};

/// Prints to standard output. A closed pipe is not an error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has closed the pipe because it needs no more output.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
