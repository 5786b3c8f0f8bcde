//! Memory that a peer borrows: the peer reads it in place, and it is retained until the peer returns it.

use device::DeviceMemory;
use device::shared_block::SharedBlock;
use device::shared_memory::SharedMemory;
use graph::Buffer;
use std::sync::Arc;

/// The memory of a borrowed tensor.
#[derive(Clone, Debug)]
pub(super) enum Loan {
    Host(Arc<Buffer>),
    Device(Arc<dyn DeviceMemory>),
}

impl Loan {
    /// Returns the shared block at whose beginning the tensor is, if other processes can map it.
    pub(super) fn block(&self) -> Option<&dyn SharedBlock> {
        match self {
            Loan::Host(buffer) => {
                let memory = buffer.region().and_then(SharedMemory::of)?;
                Some(memory)
            }
            Loan::Device(memory) => memory.shared_block(),
        }
    }

    /// Returns the size of the tensor, bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Loan::Host(buffer) => buffer.len(),
            Loan::Device(memory) => memory.len(),
        }
    }
}
