//! The sender's reference to memory that a peer borrows, which keeps the memory until the peer returns it.

use super::lent::LentTensor;
use device::DeviceMemory;
use device::shared_block::SharedBlock;
use device::shared_memory::SharedMemory;
use graph::Buffer;
use std::sync::Arc;

/// The memory of a tensor that a peer borrows.
#[derive(Clone, Debug)]
pub(super) enum BufferBorrow {
    Host(Arc<Buffer>),
    Device(Arc<dyn DeviceMemory>),
    /// Memory that the peer reads by a fabric.
    Lent(Arc<LentTensor>),
}

impl BufferBorrow {
    /// Returns the shared block that contains the tensor, and the position of the tensor in it; `None` if other processes
    /// cannot map the tensor's memory.
    pub(super) fn block(&self) -> Option<(&dyn SharedBlock, usize)> {
        match self {
            BufferBorrow::Host(buffer) => {
                let (memory, start) = buffer.region().and_then(SharedMemory::of)?;
                Some((memory, start))
            }
            BufferBorrow::Device(memory) => Some((memory.shared_block()?, 0)),
            BufferBorrow::Lent(_) => None,
        }
    }

    /// Returns the size of the tensor, bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            BufferBorrow::Host(buffer) => buffer.len(),
            BufferBorrow::Device(memory) => memory.len(),
            BufferBorrow::Lent(tensor) => tensor.buffer.len(),
        }
    }
}
