//! Fabrics: networks whose adapters read the memory of another machine without its processor, such as RDMA. A link over TCP
//! uses a fabric, if both ends have one of a kind, for large tensors: the sender lends its memory, and the receiver reads
//! it. Everything else goes over the link's connections.

use graph::Buffer;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Smallest tensor that is lent by a fabric, bytes: a smaller one is written in less time than a read is set up.
pub(super) const MIN_LENT_BYTES: usize = 256 << 10;

/// Time within which a read must end; otherwise the tensor is sent over the link's connections.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest length of the text by which one end of a link connects to the other end's fabric, bytes.
pub(super) const MAX_TEXT: usize = 1 << 10;

/// A process's access to a fabric.
pub trait Fabric: Send + Sync + fmt::Debug {
    /// Returns the name of the fabric's kind, without white space. Two processes can use fabrics of one kind.
    fn kind(&self) -> &'static str;

    /// Begins the sending end of a link. Returns the text, in one line, by which the receiving end connects.
    ///
    /// # Errors
    /// Those of the adapter.
    fn lender(&self) -> io::Result<(Box<dyn Lender>, String)>;

    /// Begins the receiving end of a link from the sender's text. Returns the text, in one line, that completes the sender's
    /// end. May block.
    ///
    /// # Errors
    /// `InvalidData` for a malformed text, and those of the adapter.
    fn borrower(&self, offer: &str) -> io::Result<(Arc<dyn Borrower>, String)>;
}

/// The sending end of a link. Its registrations end before it is dropped.
pub trait Lender: Send + Sync + fmt::Debug {
    /// Completes the end by the receiver's text. May block.
    ///
    /// # Errors
    /// `InvalidData` for a malformed text, and those of the adapter.
    fn complete(&self, answer: &str) -> io::Result<()>;

    /// Lets the receiver read a buffer, which does not change, until the registration is dropped.
    ///
    /// # Errors
    /// Those of the adapter, for instance if no more memory can be registered.
    fn register(&self, buffer: &Arc<Buffer>) -> io::Result<Box<dyn Registration>>;
}

/// Memory that the receiver may read. A read of the memory fails once the registration was dropped.
pub trait Registration: Send + Sync + fmt::Debug {
    fn remote(&self) -> RemoteMemory;
}

/// Memory of another process, as its adapter names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    pub address: u64,
    pub key: u64,
}

/// The receiving end of a link.
pub trait Borrower: Send + Sync + fmt::Debug {
    /// Reads memory of the sender into `into`. Blocks until the bytes are there, at most until `deadline`; no byte is
    /// written after the call has returned.
    ///
    /// # Errors
    /// `TimedOut` at the deadline, and those of the adapter, for instance for memory that is not registered.
    fn read(&self, from: RemoteMemory, into: &mut [u8], deadline: Instant) -> io::Result<()>;

    /// Ends the reads in progress with an error, and refuses others.
    fn close(&self);
}

/// The sender's view of a link's fabric.
#[derive(Debug, Default)]
pub(super) enum Lending {
    /// The link has no fabric, or it has failed.
    #[default]
    None,
    /// The receiver has been offered the fabric and has not answered.
    Offered(Arc<dyn Lender>),
    Ready(Arc<dyn Lender>),
}

impl Lending {
    /// Returns the end by which a tensor of this size is lent.
    pub(super) fn lender(&self, bytes: usize) -> Option<&Arc<dyn Lender>> {
        match self {
            Lending::Ready(lender) if bytes >= MIN_LENT_BYTES => Some(lender),
            _ => None,
        }
    }

    /// Removes and returns the offered end when the receiver has answered; `None` if no offer is pending.
    pub(super) fn take_offered(&mut self) -> Option<Arc<dyn Lender>> {
        match std::mem::take(self) {
            Lending::Offered(lender) => Some(lender),
            other => {
                *self = other;
                None
            }
        }
    }
}
