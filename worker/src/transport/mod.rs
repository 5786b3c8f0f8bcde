//! Tensors between the processes of one kind: a link from each process that sends to each that receives.
//!
//! **Meeting.** Who is given a graph that sends asks the other task for its status over gRPC and says that it is one of
//! ours; one of ours answers with an invitation ([`meeting`]): its epoch, a random token, and where it listens. A
//! foreign task knows nothing of that, and goes on fetching what it wants by RecvTensor, as everybody does until a link
//! stands and wherever none can: [`road`] keeps what is known of each address, and what was kept before is pushed when
//! the link comes up. A receiver relies on being sent to only where the sender has said that it knows him by this address;
//! else he fetches too, and what comes first counts. So no step ever waits for a meeting: tensors of one that is faster go
//! the long way.
//!
//! **A link** is one main connection, and over TCP some lanes for parts of large tensors. On one machine it is an
//! abstract Unix socket: large tensors lie in sealed memory ([`device::shared_memory`]), whose descriptor crosses
//! once; after that a tensor is a message of some hundred bytes, read where it lies. It is *lent*: until its last reader
//! returns it, an update in place copies first, as for readers of this process. A lender whose borrower vanishes never
//! writes that memory again. What lies in a GPU's memory is lent in a block of that, once the receiving device has said that it
//! sees such ([`sights`]). Between workers of one process, values pass by pointer ([`shelf`]). Elsewhere [`frame`]s
//! carry the elements, written from the tensor and read into one.
//!
//! **Push.** A Send leaves at once, whether or not its receiver asks; all that a thread sends before it pauses leaves in
//! one write ([`outbox`]), by that thread if the socket takes it, else by the link's own. The receiver puts values into
//! the rendezvous of their steps, which may not have begun here: such steps are bounded in number and time. What has come
//! together is heard together, and what it makes leave does so at once ([`cork`]): small values of the same
//! step go back by the same connection to whom it was heard from, with the answer to the run if that was one ([`way_back`]).
//! What is in flight is bounded by a [`budget`]; beyond it a value is offered, and leaves when its receiver asks. What
//! goes back has a small bound of its own.
//!
//! **Ends.** A part of a step that fails before it has sent everything tells its receivers, whose own parts fail by what it
//! says: who fetches hears that by RecvTensor's answer. A broken link fails what waits for it by name, and the steps that
//! had sent over it; those that did neither go on. What a step did not take up goes when it is aborted or cleaned up. Runs of graphs use the same links, which
//! saves a step the turns of two RPC runtimes; everything else stays with gRPC.

mod budget;
mod connection;
mod content;
mod cork;
mod frame;
mod hearing;
mod inbound;
mod linked;
mod loans;
mod meeting;
mod outbound;
mod outbox;
mod peer_blocks;
mod ports;
mod reader;
mod road;
mod roads;
mod shelf;
mod sights;
mod socket;
#[cfg(test)]
mod testing;
mod vigil;
mod way_back;

pub(crate) use inbound::{Inbound, weight};
pub(crate) use linked::LinkedWorker;
pub(crate) use meeting::{ANSWERED, ASKED};
pub(crate) use outbound::{Cause, Outbound};
pub(crate) use road::Road;
pub(crate) use roads::Roads;

use std::fmt;
use std::str::FromStr;

/// Which ways tensors may take between our own processes. Foreign ones always use gRPC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The best that both ends have.
    #[default]
    Auto,
    /// Shared memory on one machine, within one process too; gRPC between machines.
    Shm,
    /// TCP, on one machine too.
    Tcp,
    /// RecvTensor only.
    Grpc,
}

impl Transport {
    const NAMES: [(&str, Transport); 4] = [
        ("auto", Transport::Auto),
        ("shm", Transport::Shm),
        ("tcp", Transport::Tcp),
        ("grpc", Transport::Grpc),
    ];

    /// Whether tensors may lie in memory that others read.
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
