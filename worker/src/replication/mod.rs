//! A task that two processes hold: one serves it, the other, its standby, follows what changes and takes over when the
//! first has died.
//!
//! **Nothing is to be lost.** A run is answered once the standby has applied all that had changed by its end
//! ([`Primary::settle`]), in batches that are each as the task was at one moment (`device::journal`). A standby that
//! has just come is told everything first; steps do not wait for it until it has that.
//!
//! **Never two.** The standby listens on no port of the task. It takes over when the other's port refuses connections, as
//! only that of a process that has ended does, or when it has heard nothing for [`SILENCE`]. The process that serves answers
//! only within [`LEASE`] of a time that it has told its standby and that was repeated. If it has lost its standby, it looks
//! whether that one's process lives, by a port that is held open for that alone ([`Sign`]): if it does, or if nothing can be
//! said because the network is silent, runs wait, and fail by name after a while; if it has taken over, this process ends.

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

/// How long a connection is tried to see whether a process lives.
const LOOK: Duration = Duration::from_secs(2);
/// How long either side has to say its first word.
const FIRST_WORD: Duration = Duration::from_secs(5);
/// So often a process that serves says so to its standby, which repeats it.
const BEAT: Duration = Duration::from_secs(1);
/// How long after it has said something that was repeated a process answers runs: less than [`SILENCE`].
const LEASE: Duration = Duration::from_secs(5);
/// How long a standby that has all waits for a word of the process that serves before it takes over.
const SILENCE: Duration = Duration::from_secs(10);

/// What a port says of the process that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    Lives,
    /// It was a standby, and has taken over.
    HasTakenOver,
    /// Its machine answers, and no process has the port.
    Ended,
    /// The machine may be gone, or the way to it.
    Silence,
}

async fn look(address: &str) -> Sign {
    sign(timeout(LOOK, async { connect(address).await.map(|_| Sign::Lives) }).await)
}

/// Refused only if all addresses of the name refuse to which there is a way from here.
async fn connect(address: &str) -> io::Result<TcpStream> {
    let mut attempts: FuturesUnordered<_> = lookup_host(address).await?.map(TcpStream::connect).collect();
    let (mut refused, mut unseen) = (None, None);
    while let Some(attempt) = attempts.next().await {
        match attempt {
            Ok(stream) => return Ok(stream),
            Err(error) => match error.kind() {
                ErrorKind::ConnectionRefused => refused = Some(error),
                // A family of addresses that this machine does not have.
                ErrorKind::NetworkUnreachable | ErrorKind::AddrNotAvailable | ErrorKind::Unsupported => {}
                _ => unseen = Some(error),
            },
        }
    }
    Err(unseen.or(refused).unwrap_or_else(|| ErrorKind::NetworkUnreachable.into()))
}

/// As [`look`], of a process that says this number on the port: another may have got it.
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

fn sign(seen: Result<io::Result<Sign>, Elapsed>) -> Sign {
    match seen {
        Ok(Ok(sign)) => sign,
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Sign::Ended,
        Ok(Err(_)) | Err(_) => Sign::Silence,
    }
}
