//! The transfer of tensors between processes of this implementation, by a link from each sending process to
//! each receiving process.
//!
//! **Handshake.** A worker that is given a graph with Send nodes asks the receiving task for its status over gRPC, with
//! metadata that requests an invitation. A task of this implementation answers with an invitation ([`handshake`]): its
//! process number, a random token and its addresses. A foreign task ignores the metadata and fetches tensors by
//! RecvTensor. All other tasks also do so until a link is open and where no link is possible. A [`route`] stores the
//! state of the link to one address. When the link comes up, the values that wait for it are pushed. A receiver relies
//! on pushes only if the sender has announced that its cluster spec lists the receiver's task under the address of this
//! link; otherwise the receiver fetches too, and the first result counts. Therefore no step waits for a handshake: a
//! step that runs before the link is open fetches its values.
//!
//! **Links.** A link is one main connection, and over TCP some secondary connections for parts of large
//! tensors. On one machine it is an abstract Unix socket. On one machine, large tensors are in sealed memory
//! files ([`device::shared_memory`]) whose descriptor is sent once; each tensor is then announced by a frame
//! of some hundred bytes and read in place. The receiver *borrows* the memory: until it has returned the
//! memory, the sender copies the tensor before an update in place, as it does for readers in its own process.
//! If a borrower vanishes, the lender never writes that memory again. Tensors in GPU memory are shared in the
//! same way, by a block of GPU memory, once the receiving device has reported that it can access such blocks
//! ([`peer_access`]). Between machines, where both ends have a fabric, such as RDMA, the receiver reads large tensors by it
//! ([`fabric`]). Between workers of one process, values pass by pointer ([`handoff`]). In all other
//! cases [`frame`]s carry the elements, written from the sender's tensor and read into the receiver's.
//!
//! **Push.** A Send node's value is sent at once, whether or not a receive waits for it. The frames that a
//! thread sends before it pauses leave in one write ([`outbox`]): by that thread if the socket accepts them,
//! or else by the link's thread. The receiver stores values in the rendezvous of their steps. Steps that have
//! values but have not started on the receiver are limited in number and time. Frames that have arrived
//! together are handled together, and the frames sent in response leave together ([`cork`]). Small values
//! that a step sends to the process whose frame is being handled return by the connection of that frame,
//! along with the answer if the frame was a run ([`piggyback`]). The bytes in flight are limited by a
//! [`budget`]; beyond the limit a value is offered, and sent when its receiver requests it. Piggybacked
//! values do not count against the budget but have a separate, small limit.
//!
//! **Failures.** If a part of a step fails before it has sent everything, its receivers are notified, and
//! their parts of the step fail with the same status; a receiver that fetches gets the status as the answer
//! to RecvTensor. A broken link fails the receives that wait for its values, with a message that names the
//! peer, and cancels the steps that had sent over it; other steps continue. Values that a step did not
//! consume are dropped when the step is aborted or cleaned up. Runs of graphs use the same links, which saves
//! each step two passes through an RPC runtime; all calls except runs and the ends of steps use gRPC.

mod adaptive_spin;
mod budget;
mod connection;
mod content;
mod fabric;
mod frame;
mod handoff;
mod handshake;
mod inbound;
mod link_table;
mod linked;
mod outbound;
mod outbox;
mod peer_access;
mod peer_blocks;
mod piggyback;
mod ports;
mod reader;
mod receive;
mod route;
mod socket;
#[cfg(test)]
mod testing;

pub use fabric::{Borrower, Fabric, Lender, Registration, RemoteMemory};
pub(crate) use handshake::{FABRIC_KEY, INVITATION_KEY, INVITATION_REQUEST_KEY};
pub(crate) use inbound::{Inbound, pushed_bytes};
pub(crate) use link_table::LinkTable;
pub(crate) use linked::LinkedWorker;
pub(crate) use outbound::{Outbound, PushReason};
pub(crate) use route::Route;

use std::fmt;
use std::str::FromStr;

/// The routes that tensors may take between processes of this implementation. Foreign processes always use
/// gRPC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The fastest route that both ends support: memory of one process, shared memory, TCP or gRPC.
    #[default]
    Auto,
    /// Shared memory on one machine, even between workers of one process; gRPC between machines.
    Shm,
    /// TCP between machines and on one machine.
    Tcp,
    /// RecvTensor for all tensors: no links are opened.
    Grpc,
}

impl Transport {
    const NAMES: [(&str, Transport); 4] = [
        ("auto", Transport::Auto),
        ("shm", Transport::Shm),
        ("tcp", Transport::Tcp),
        ("grpc", Transport::Grpc),
    ];

    /// Returns whether this transport lets other processes read tensors in shared memory.
    pub(crate) fn shares_memory(self) -> bool {
        matches!(self, Transport::Auto | Transport::Shm)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Transport::NAMES.iter().find(|(_, t)| t == self).map_or("auto", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Transport, String> {
        let known = Transport::NAMES.iter().find(|(name, _)| *name == text).map(|(_, t)| *t);
        known.ok_or_else(|| format!("'{text}' is none of auto, shm, tcp, grpc"))
    }
}
