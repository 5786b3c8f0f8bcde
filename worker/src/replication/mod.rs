//! Replicated tasks: one process, the primary, serves the task; another, its standby, applies the same
//! changes and takes over when the primary has died.
//!
//! **No change is lost.** A run is answered once the standby has applied all changes made by the end of the
//! run ([`Primary::settle`]). Changes are sent in batches, each of which is consistent (`executor::journal`).
//! A new standby first receives a snapshot; runs do not wait for the standby until it has applied the
//! snapshot.
//!
//! **Two processes never serve at once.** The standby listens on no port of the task. It takes over when the
//! primary's port refuses connections, which only happens after the primary's process has ended, or when it
//! has received nothing for [`SILENCE`]. The primary answers runs only within [`LEASE`] of sending a
//! heartbeat that the standby acknowledged. If the primary has lost its standby, it probes whether the
//! standby's process lives, by a port that the standby holds open for this purpose ([`ProcessState`]). While
//! the process lives or the network is silent, runs wait, and fail with a message that names the standby
//! after a while. If the standby has taken over, the primary's process ends.

mod applying;
mod encode;
mod following;
mod pieces;
mod primary;
mod service;
mod standby;

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
const LOOK: Duration = Duration::from_secs(2);
/// Time in which either side must send its first message.
const FIRST_WORD: Duration = Duration::from_secs(5);
/// Period of the primary's heartbeats, which the standby acknowledges.
const BEAT: Duration = Duration::from_secs(1);
/// Time after an acknowledged heartbeat for which a primary answers runs: less than [`SILENCE`].
const LEASE: Duration = Duration::from_secs(5);
/// Time for which a standby with the complete state waits for a message of the primary before it takes over.
const SILENCE: Duration = Duration::from_secs(10);

/// The state of a process as a probe of its port shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    Lives,
    /// The process was a standby, and has taken over.
    HasTakenOver,
    /// Its machine answers, but no process has the port.
    Ended,
    /// The machine or the network to it may be down.
    Silence,
}

/// Probes the process that listens at an address.
async fn look(address: &str) -> Sign {
    sign(timeout(LOOK, async { connect(address).await.map(|_| Sign::Lives) }).await)
}

/// Connects to an address. The error is `ConnectionRefused` only if all addresses of the name that are
/// reachable from this machine refuse.
async fn connect(address: &str) -> io::Result<TcpStream> {
    let mut attempts: FuturesUnordered<_> = lookup_host(address).await?.map(TcpStream::connect).collect();
    let (mut refused, mut unseen) = (None, None);
    while let Some(attempt) = attempts.next().await {
        match attempt {
            Ok(stream) => return Ok(stream),
            Err(error) => match error.kind() {
                ErrorKind::ConnectionRefused => refused = Some(error),
                // The machine has no addresses of this family.
                ErrorKind::NetworkUnreachable | ErrorKind::AddrNotAvailable | ErrorKind::Unsupported => {}
                _ => unseen = Some(error),
            },
        }
    }
    Err(unseen.or(refused).unwrap_or_else(|| ErrorKind::NetworkUnreachable.into()))
}

/// Probes a process like [`probe`], and checks that it sends `token` on the port: another process may have
/// got the port.
async fn look_for(address: &str, token: u64) -> Sign {
    let ask = async {
        let mut stream = connect(address).await?;
        let mut said = [0; 8];
        stream.read_exact(&mut said).await?;
        Ok(match u64::from_le_bytes(said) {
            said if said == token => Sign::Lives,
            said if said == !token => Sign::HasTakenOver,
            _ => Sign::Ended,
        })
    };
    sign(timeout(LOOK, ask).await)
}

/// Interprets the outcome of a probe.
fn sign(seen: Result<io::Result<Sign>, Elapsed>) -> Sign {
    match seen {
        Ok(Ok(sign)) => sign,
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Sign::Ended,
        Ok(Err(_)) | Err(_) => Sign::Silence,
    }
}
