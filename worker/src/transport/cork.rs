//! While a thread hears what has come, what follows from that waits, and then leaves together: one write, for which the
//! other end wakes once.

use super::connection::Connection;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    /// Connections that something is to leave by; `None` while it leaves at once.
    static WAITING: RefCell<Option<Vec<Arc<Connection>>>> = const { RefCell::new(None) };
}

/// Does something; what this thread would send meanwhile leaves at its end. Within another such thing, at the end of that.
pub(super) fn corked<T>(something: impl FnOnce() -> T) -> T {
    let _cork = Cork { outer: WAITING.replace(Some(Vec::new())) };
    something()
}

/// Whether what is to leave by this connection waits for the end of what this thread does.
pub(super) fn waits(connection: &Arc<Connection>) -> bool {
    WAITING.with_borrow_mut(|waiting| {
        let Some(connections) = waiting else { return false };
        if !connections.iter().any(|known| Arc::ptr_eq(known, connection)) {
            connections.push(connection.clone());
        }
        true
    })
}

/// What waits leaves now: something long may follow.
pub(super) fn release() {
    let waiting = WAITING.with_borrow_mut(|waiting| waiting.as_mut().map(std::mem::take));
    for connection in waiting.unwrap_or_default() {
        connection.flush_now();
    }
}

struct Cork {
    /// What waited before.
    outer: Option<Vec<Arc<Connection>>>,
}

impl Drop for Cork {
    fn drop(&mut self) {
        for connection in WAITING.replace(self.outer.take()).unwrap_or_default() {
            connection.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::frame::Frame;
    use crate::transport::testing;
    use std::io::{self, Read};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn what_leaves_meanwhile_leaves_at_the_end_even_of_a_panic() -> Result<(), Box<dyn std::error::Error>> {
        let (connection, mut there) = testing::connection()?;
        let connection = Arc::new(connection);
        let mut comes = |bytes: &mut [u8]| match there.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            read => read,
        };
        let mut bytes = [0; 256];
        for panics in [false, true] {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                corked(|| {
                    for bytes in 0..2 {
                        assert!(connection.post(&Frame::Consumed { bytes }, None).is_ok());
                        connection.flush();
                    }
                    assert!(matches!(comes(&mut bytes), Ok(0)), "it left at once");
                    release();
                    assert!(comes(&mut bytes).is_ok_and(|n| n > 0), "it was not released");
                    for bytes in 0..2 {
                        corked(|| {
                            assert!(connection.post(&Frame::Consumed { bytes }, None).is_ok());
                            connection.flush();
                        });
                    }
                    assert!(matches!(comes(&mut bytes), Ok(0)), "what is within does not wait");
                    if panics {
                        std::panic::resume_unwind(Box::new("what is heard panics"));
                    }
                })
            }));
            assert!(ended.is_err() == panics);
            let together = comes(&mut bytes)?;
            assert!(connection.post(&Frame::Consumed { bytes: 2 }, None).is_ok());
            connection.flush();
            let alone = comes(&mut bytes)?;
            assert!(alone > 0 && together == 2 * alone, "{together} bytes, {alone} bytes");
        }
        Ok(())
    }
}
