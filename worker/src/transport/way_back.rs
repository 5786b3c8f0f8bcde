//! The way back: a step's small values for the process that something of the step is heard from right now. They take the
//! connection by which that came, and leave with the answer to it: in one write, for which the other end wakes once.
//!
//! Should that connection break, the step fails at the other end whether or not a value was on it: it waits there for the
//! answer to a run, or has sent over this connection itself.

use super::connection::Connection;
use std::cell::RefCell;
use std::sync::Arc;

/// Larger values lie in shared memory, or are counted, bytes.
const SMALL: usize = 16 << 10;
/// What follows from one frame and goes uncounted, bytes.
const MOST: usize = 1 << 20;

thread_local! {
    /// While something is heard, where it came from.
    static OPEN: RefCell<Option<WayBack>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct WayBack {
    connection: Arc<Connection>,
    /// The worker at its other end.
    to: u64,
    step_id: i64,
    left: usize,
}

/// Does what follows from something of a step, heard by this connection from this worker.
pub(super) fn open<T>(connection: &Arc<Connection>, to: u64, step_id: i64, what: impl FnOnce() -> T) -> T {
    let way = WayBack { connection: connection.clone(), to, step_id, left: MOST };
    let _closes = Closes(OPEN.replace(Some(way)));
    what()
}

/// The connection for a value of a step to this worker, if it is to go back.
pub(super) fn take(to: u64, step_id: i64, bytes: usize) -> Option<Arc<Connection>> {
    OPEN.with_borrow_mut(|open| {
        let way = open.as_mut().filter(|way| way.to == to && way.step_id == step_id)?;
        let is_small = bytes <= SMALL.min(way.left);
        if !is_small || way.connection.is_broken() {
            return None;
        }
        way.left -= bytes;
        Some(way.connection.clone())
    })
}

/// Puts back what was there before; after a panic too.
struct Closes(Option<WayBack>);

impl Drop for Closes {
    fn drop(&mut self) {
        OPEN.set(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::socket::Socket;
    use std::os::unix::net::UnixStream;

    #[test]
    fn small_values_of_the_step_go_back_to_whom_it_was_heard_from() -> std::io::Result<()> {
        let (here, _there) = UnixStream::pair()?;
        let connection = Arc::new(Connection::new(Socket::unix(here), Vec::new()));
        let is_taken = |to, step_id, bytes| take(to, step_id, bytes).is_some();
        assert!(!is_taken(7, 1, 0), "nothing is heard");
        open(&connection, 7, 1, || {
            assert!(is_taken(7, 1, 0) && is_taken(7, 1, SMALL));
            assert!(!is_taken(7, 1, SMALL + 1), "it is not small");
            assert!(!is_taken(8, 1, 0), "it is for another worker");
            assert!(!is_taken(7, 2, 0), "it is of another step");
            open(&connection, 8, 2, || assert!(is_taken(8, 2, 0) && !is_taken(7, 1, 0)));
            let back = std::iter::repeat_with(|| is_taken(7, 1, SMALL)).take_while(|taken| *taken);
            assert_eq!(back.count(), MOST / SMALL - 1, "what goes uncounted is bounded");
            assert!(is_taken(7, 1, 0));
            connection.close();
            assert!(!is_taken(7, 1, 0), "it would be lost");
        });
        assert!(!is_taken(7, 1, 0));
        Ok(())
    }
}
