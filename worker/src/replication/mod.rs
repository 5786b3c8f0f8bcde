//! Replicated tasks: one process, the primary, serves the task; another, its standby, applies the same
//! changes and takes over when the primary has died.
//!
//! **No change is lost.** A run is answered once the standby has applied all changes made by the end of the
//! run ([`Primary::wait_replicated`]). Changes are sent in batches, each of which is consistent (`device::journal`).
//! A new standby first receives a snapshot; runs do not wait for the standby until it has applied the
//! snapshot.
//!
//! **Two processes never serve at once.** The standby listens on no port of the task. It takes over when the
//! primary's port refuses connections, which only happens after the primary's process has ended, or when it
//! has received nothing for [`SILENCE`]. The primary answers runs only within [`LEASE`] of sending a
//! heartbeat that the standby acknowledged. If the primary has lost its standby, it probes whether the
//! standby's process lives, by a port that the standby holds open for this purpose ([`ProcessState`]). While
//! the process lives or cannot be reached, runs wait, and after a time limit fail with a message that names
//! the standby. If the standby has taken over, the primary's process ends.

mod apply_queue;
mod encode;
mod primary;
mod service;
mod split;
mod standby;
mod standby_state;

pub(crate) use primary::Primary;
pub use service::Replication;
pub use standby::Standby;

use futures::stream::{FuturesUnordered, StreamExt};
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

/// Timeout of a probe for a live process.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time within which the primary and the standby must each send their first message on a connection.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Period of the primary's heartbeats, which the standby acknowledges.
const HEARTBEAT_PERIOD: Duration = Duration::from_secs(1);
/// Time after an acknowledged heartbeat for which a primary answers runs: less than [`SILENCE`].
const LEASE: Duration = Duration::from_secs(5);
/// Time for which a standby with the complete state waits for a message of the primary before it takes over.
const SILENCE: Duration = Duration::from_secs(10);

/// The state of a task's process that a connection attempt to its port reveals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessState {
    Alive,
    /// The process was a standby, and has taken over.
    HasTakenOver,
    /// The process's machine refuses the connection, or another process has the port.
    Ended,
    /// The process may still run: the connection attempt timed out or failed without being refused.
    Unreachable,
}

/// Returns the state of the process that listens at an address.
async fn probe(address: &str) -> ProcessState {
    process_state(timeout(PROBE_TIMEOUT, async { connect(address).await.map(|_| ProcessState::Alive) }).await)
}

/// Connects to an address. The error is `ConnectionRefused` only if all addresses of the name that are
/// reachable from this machine refuse.
async fn connect(address: &str) -> io::Result<TcpStream> {
    let mut attempts: FuturesUnordered<_> = lookup_host(address).await?.map(TcpStream::connect).collect();
    let (mut refused, mut unreachable_error) = (None, None);
    while let Some(attempt) = attempts.next().await {
        match attempt {
            Ok(stream) => return Ok(stream),
            Err(error) => match error.kind() {
                ErrorKind::ConnectionRefused => refused = Some(error),
                // This machine does not support the address family, so the attempt gives no information about the
                // process.
                ErrorKind::NetworkUnreachable | ErrorKind::AddrNotAvailable | ErrorKind::Unsupported => {}
                _ => unreachable_error = Some(error),
            },
        }
    }
    Err(unreachable_error.or(refused).unwrap_or_else(|| ErrorKind::NetworkUnreachable.into()))
}

/// Returns the state of a standby's process like [`probe`]. The process must send `token` or the complement of `token`;
/// any other number comes from another process that has got the port after the end of the standby's process.
async fn probe_token(address: &str, token: u64) -> ProcessState {
    let ask = async {
        let mut stream = connect(address).await?;
        let mut sent = [0; 8];
        stream.read_exact(&mut sent).await?;
        Ok(match u64::from_le_bytes(sent) {
            sent if sent == token => ProcessState::Alive,
            sent if sent == !token => ProcessState::HasTakenOver,
            _ => ProcessState::Ended,
        })
    };
    process_state(timeout(PROBE_TIMEOUT, ask).await)
}

/// Converts the result of a connection attempt into the state of the process.
fn process_state(outcome: Result<io::Result<ProcessState>, Elapsed>) -> ProcessState {
    match outcome {
        Ok(Ok(state)) => state,
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => ProcessState::Ended,
        Ok(Err(_)) | Err(_) => ProcessState::Unreachable,
    }
}
