//! The rendezvous, through which Send and Recv exchange tensors: the trait that every transport implements, and the
//! keys.

mod local;

pub use graph::RendezvousKey;
pub use local::LocalRendezvous;

use crate::device::{Device, DeviceTensor};
use crate::error::{Error, Result};
use crate::value::Value;
use std::fmt;
use std::sync::Arc;

/// The result of a Send: a value, or the mark of a dead tensor.
#[derive(Clone, Debug)]
pub struct Sent {
    pub value: Value,
    pub is_dead: bool,
}

impl Sent {
    /// Creates the mark of a dead tensor.
    pub fn dead() -> Sent {
        Sent { value: Value::None, is_dead: true }
    }
}

/// A callback that receives the sent value, or the reason why it will never be sent. It is called exactly once.
pub type Receive = Box<dyn FnOnce(Result<Sent>) + Send>;

/// The rendezvous of one step. Each value goes to one receiver of its key; values of one key are received in the order
/// of sending.
pub trait Rendezvous: Send + Sync + fmt::Debug {
    /// Sends a value, or the mark of a dead tensor, to the receiver of the key.
    ///
    /// # Errors
    /// The reason if the step was aborted; errors of the transport.
    fn send(&self, key: &Arc<RendezvousKey>, sent: Sent) -> Result<()>;

    /// Calls `receive` once the value has been sent or the step has failed. If the value was sent or the step failed
    /// before this call, `receive` is called on the calling thread.
    fn recv(&self, key: &Arc<RendezvousKey>, receive: Receive);

    /// Returns whether a device's tensor is to be sent in a buffer that the receiver's device, in another process, can
    /// map. False until [access](crate::Processor::can_access) has been confirmed.
    fn can_share_with_peer(
        &self,
        _key: &Arc<RendezvousKey>,
        _device: &Arc<Device>,
        _tensor: &DeviceTensor,
    ) -> bool {
        false
    }

    /// Transmits all sends gathered so far, because the calling thread has no more to send for now.
    fn flush(&self) {}

    /// Fails all operations that wait, and all later ones, with the first reason given.
    fn abort(&self, reason: Error);
}
