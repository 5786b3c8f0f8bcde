//! Reductions of tensors in device memory by a library of the devices' maker, such as NVIDIA's NCCL. The members of a
//! group, in one process or several, create a communicator together, and start their reductions in the same order.

use crate::collective::Reduction;
use crate::device::{DeviceTensor, Transfer};
use crate::error::Result;
use graph::DType;
use std::fmt;
use std::sync::Arc;

/// A device's access to the library.
pub trait DeviceCollectives: Send + Sync + fmt::Debug {
    /// Returns a name of the physical device that no other device of any machine has. A library refuses a communicator
    /// that contains a physical device twice.
    ///
    /// # Errors
    /// `Unavailable` with the reason why the library cannot be used.
    fn identity(&self) -> Result<String>;

    /// Returns whether the library carries out a reduction of elements of a type.
    fn can_reduce(&self, dtype: DType, reduction: Reduction) -> bool;

    /// Creates the key of a new communicator, at most [`MAX_KEY_BYTES`] bytes, which all members pass to
    /// [`DeviceCollectives::connect`]. May block.
    ///
    /// # Errors
    /// Those of the library.
    fn create_key(&self) -> Result<Vec<u8>>;

    /// Begins to create this device's side of a communicator. The other members may not have begun yet, and the call
    /// does not wait for them: [`DeviceCommunicator::is_connected`] returns true once all have. May block for as long
    /// as the device takes to be opened.
    ///
    /// # Errors
    /// `InvalidArgument` for bytes that are not a key, and those of the library.
    fn connect(&self, place: &CommunicatorPlace) -> Result<Arc<dyn DeviceCommunicator>>;
}

/// The largest number of bytes of a communicator's key.
pub const MAX_KEY_BYTES: usize = 256;

/// A member's place in a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommunicatorPlace {
    pub key: Vec<u8>,
    /// The member's rank, less than `size`.
    pub rank: usize,
    /// Number of members.
    pub size: usize,
}

/// One device's side of a communicator. It is aborted when it is dropped.
pub trait DeviceCommunicator: Send + Sync + fmt::Debug {
    /// Returns whether all members have connected. Never blocks.
    ///
    /// # Errors
    /// Those of the library, if the communicator has failed, before it was connected or later.
    fn is_connected(&self) -> Result<bool>;

    /// Starts a reduction, after those that have been started before, and calls `done` with the result when the device
    /// has computed it, or the reduction has failed. All members must start their reductions in the same order.
    fn all_reduce(&self, reduction: Reduction, tensor: DeviceTensor, done: Transfer<DeviceTensor>);

    /// Ends the communicator: reductions in progress fail, even if other members never start them. May block for a
    /// short time.
    fn abort(&self);
}
