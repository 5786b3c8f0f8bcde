//! Memory that a peer borrows: the peer reads it in place, and it is retained until the peer returns it.

use device::DeviceMemory;
use device::shared_block::SharedBlock;
use device::shared_memory::SharedMemory;
use graph::Buffer;
use std::sync::Arc;

/// The memory of a borrowed tensor.
#[derive(Clone, Debug)]
pub(super) enum BufferBorrow {
    Host(Arc<Buffer>),
    Device(Arc<dyn DeviceMemory>),
}

impl BufferBorrow {
    /// Returns the shared block at whose beginning the tensor is, if other processes can map it.
    pub(super) fn block(&self) -> Option<&dyn SharedBlock> {
        match self {
            BufferBorrow::Host(buffer) => {
                let memory = buffer.region().and_then(SharedMemory::of)?;
                Some(memory)
            }
            BufferBorrow::Device(memory) => memory.shared_block(),
        }
    }

    /// Returns the size of the tensor, bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            BufferBorrow::Host(buffer) => buffer.len(),
            BufferBorrow::Device(memory) => memory.len(),
        }
    }
}
