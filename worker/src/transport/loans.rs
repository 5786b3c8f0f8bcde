//! What is lent to a peer: memory that it reads where it is, held until it is returned.

use device::DeviceMemory;
use device::shared_block::SharedBlock;
use device::shared_memory::SharedMemory;
use graph::Buffer;
use std::sync::Arc;

/// The memory of a tensor.
#[derive(Clone, Debug)]
pub(super) enum Loan {
    Host(Arc<Buffer>),
    Device(Arc<dyn DeviceMemory>),
}

impl Loan {
    /// The block that it lies in, from its beginning on, if others can read that.
    pub(super) fn block(&self) -> Option<&dyn SharedBlock> {
        match self {
            Loan::Host(buffer) => {
                let memory = buffer.region().and_then(SharedMemory::of)?;
                Some(memory)
            }
            Loan::Device(memory) => memory.shared_block(),
        }
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Loan::Host(buffer) => buffer.len(),
            Loan::Device(memory) => memory.len(),
        }
    }
}
