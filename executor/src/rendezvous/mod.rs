//! Where Send and Recv meet: the trait that every transport implements, and the keys.

mod local;

pub use local::LocalRendezvous;

use crate::error::{Error, Result};
use crate::value::Value;
use std::fmt;
use std::sync::Arc;

/// What a Send leaves: a value, or the news that there is none.
#[derive(Clone, Debug)]
pub struct Sent {
    pub value: Value,
    pub is_dead: bool,
}

/// Called once with what was sent, or with why it never will be.
pub type Receive = Box<dyn FnOnce(Result<Sent>) + Send>;

/// The meeting place of one step. Each value that is sent goes to one receiver, in order.
pub trait Rendezvous: Send + Sync + fmt::Debug {
    fn send(&self, key: &Arc<RendezvousKey>, sent: Sent) -> Result<()>;

    /// Calls `receive` when the value is there, or the step has failed: at once if it is so already.
    fn recv(&self, key: &Arc<RendezvousKey>, receive: Receive);

    /// Fails everything that waits, now and later, with the first reason given.
    fn abort(&self, reason: Error);
}

/// Names one tensor of one step on its way between devices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RendezvousKey {
    /// The five parts as one string: what the wire carries and what both sides must agree on.
    pub text: Arc<str>,
    pub src_device: Arc<str>,
    pub src_incarnation: u64,
    pub dst_device: Arc<str>,
    pub edge: Arc<str>,
}

impl RendezvousKey {
    /// The key of an edge outside loops.
    pub fn new(src_device: &str, src_incarnation: u64, dst_device: &str, edge: &str) -> RendezvousKey {
        let text = format!("{src_device};{src_incarnation:016x};{dst_device};{edge};0:0");
        RendezvousKey {
            text: text.into(),
            src_device: src_device.into(),
            src_incarnation,
            dst_device: dst_device.into(),
            edge: edge.into(),
        }
    }

    /// # Errors
    /// `InvalidArgument` unless there are five non-empty parts and the second is a hexadecimal number.
    pub fn parse(text: &str) -> Result<RendezvousKey> {
        let malformed = || Error::invalid(format!("Invalid  rendezvous key: {text}"));
        let parts: Vec<&str> = text.split(';').collect();
        let [src, incarnation, dst, edge, frame] = parts[..] else { return Err(malformed()) };
        if [src, dst, edge, frame].iter().any(|p| p.is_empty()) || incarnation.len() != 16 {
            return Err(malformed());
        }
        let src_incarnation = u64::from_str_radix(incarnation, 16).map_err(|_| malformed())?;
        Ok(RendezvousKey {
            text: text.into(),
            src_device: src.into(),
            src_incarnation,
            dst_device: dst.into(),
            edge: edge.into(),
        })
    }
}
