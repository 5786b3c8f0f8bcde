//! Where Send and Recv meet: the trait that every transport implements, and the keys.

mod local;

pub use graph::RendezvousKey;
pub use local::LocalRendezvous;

use crate::device::{Device, DeviceTensor};
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

impl Sent {
    /// The news that there is no value.
    pub fn dead() -> Sent {
        Sent { value: Value::None, is_dead: true }
    }
}

/// Called once with what was sent, or with why it never will be.
pub type Receive = Box<dyn FnOnce(Result<Sent>) + Send>;

/// The meeting place of one step. Each value that is sent goes to one receiver, in order.
pub trait Rendezvous: Send + Sync + fmt::Debug {
    fn send(&self, key: &Arc<RendezvousKey>, sent: Sent) -> Result<()>;

    /// Calls `receive` when the value is there, or the step has failed: at once if it is so already.
    fn recv(&self, key: &Arc<RendezvousKey>, receive: Receive);

    /// Whether a tensor of the device's is to be sent where the receiver's device [sees](Device::sees) it, who is of another
    /// process. Until that is known, it is not.
    fn lends(&self, _key: &Arc<RendezvousKey>, _device: &Arc<Device>, _tensor: &DeviceTensor) -> bool {
        false
    }

    /// A thread has sent all that it can for now: what has been gathered leaves.
    fn flush(&self) {}

    /// Fails everything that waits, now and later, with the first reason given.
    fn abort(&self, reason: Error);
}
