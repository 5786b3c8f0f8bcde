//! The shared blocks of a peer that this process maps, and the borrowed tensors in them.

use super::content::tensor;
use super::frame::{Malformed, TensorSpec};
use device::Value;
use device::peer_buffer::{BorrowedMemory, BufferBorrow, PeerBuffer};
use device::shared_block::MemoryKind;
use device::shared_memory::PeerMemory;
use device::{Device, DeviceTensor};
use graph::Buffer;
use graph::tensor::{ALIGNMENT, Region};
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Largest number of shared blocks of one peer that this process maps.
const MAX_BLOCKS: usize = 1 << 16;

const TOO_LONG: Malformed = Malformed("tensor: it is longer than its block");

/// The shared blocks of one peer, by the number that the peer gave them.
#[derive(Default)]
pub(super) struct PeerBlocks {
    by_number: FxHashMap<u64, PeerBlock>,
}

impl PeerBlocks {
    pub(super) fn add(&mut self, number: u64, block: PeerBlock) -> Result<(), Malformed> {
        if self.by_number.len() >= MAX_BLOCKS {
            return Err(Malformed("block: there are too many"));
        }
        self.by_number.insert(number, block);
        Ok(())
    }

    pub(super) fn get(&self, number: u64) -> Result<&PeerBlock, Malformed> {
        self.by_number.get(&number).ok_or(Malformed("tensor: its block is unknown"))
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.by_number.remove(&number);
    }
}

/// A shared block of a peer, in the peer's host or device memory.
#[derive(Clone, Debug)]
pub(super) enum PeerBlock {
    Host(Arc<PeerMemory>),
    Device(Arc<PeerBuffer>),
}

impl PeerBlock {
    pub(super) fn new(kind: MemoryKind, len: u64, descriptor: File) -> io::Result<PeerBlock> {
        let len = usize::try_from(len).map_err(|_| Malformed("block"))?;
        Ok(match kind {
            MemoryKind::Host => PeerBlock::Host(Arc::new(PeerMemory::map(&descriptor, len)?)),
            MemoryKind::Device => PeerBlock::Device(PeerBuffer::new(descriptor, len)),
        })
    }

    /// Returns the tensor whose first byte in the block is `start`; in device memory a tensor is at the beginning of its
    /// block. The tensor's buffer owns `loan`, whose drop returns the memory to the peer.
    pub(super) fn tensor(
        &self,
        spec: TensorSpec,
        start: u64,
        loan: Box<dyn BufferBorrow>,
    ) -> io::Result<Value> {
        let len = spec.len().ok_or(TOO_LONG)?;
        let start = usize::try_from(start).map_err(|_| TOO_LONG)?;
        if !start.is_multiple_of(ALIGNMENT) {
            return Err(Malformed("tensor: it is not aligned in its block").into());
        }
        match self {
            PeerBlock::Host(memory) => {
                let end = start.checked_add(len).filter(|&end| end <= memory.bytes().len());
                let range = start..end.ok_or(TOO_LONG)?;
                let memory = BorrowedRegion { memory: memory.clone(), range, _loan: loan };
                Ok(tensor(spec, Buffer::borrowed(Box::new(memory)))?.into())
            }
            PeerBlock::Device(_) if start != 0 => Err(TOO_LONG.into()),
            PeerBlock::Device(window) => {
                let memory = BorrowedMemory::new(window.clone(), len, loan).ok_or(TOO_LONG)?;
                let TensorSpec { dtype, shape } = spec;
                Ok(DeviceTensor { dtype, shape, memory: Arc::new(memory) }.into())
            }
        }
    }

    /// Returns whether a device of this process can access the block. May block the thread.
    pub(super) fn is_accessible_by(&self, device: &Device) -> bool {
        match self {
            PeerBlock::Host(_) => false,
            PeerBlock::Device(window) => device.processor().can_access(window),
        }
    }
}

/// A borrowed buffer: a range of the bytes of a shared block in the sender's host memory.
struct BorrowedRegion {
    memory: Arc<PeerMemory>,
    range: Range<usize>,
    _loan: Box<dyn BufferBorrow>,
}

impl Region for BorrowedRegion {
    fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[self.range.clone()]
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }

    fn is_writable(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::shared_block::SharedBlock;
    use device::shared_memory::SharedMemory;
    use graph::{DType, Shape};
    use std::os::fd::OwnedFd;

    struct Loan;

    impl BufferBorrow for Loan {
        fn report_no_access(&self) {}
    }

    #[test]
    fn a_tensor_may_be_anywhere_in_its_block_but_not_beyond_it() -> Result<(), Box<dyn std::error::Error>> {
        let mut memory = SharedMemory::new(4096)?;
        let values: Vec<u8> = (0..4096).map(|i| (i / 64) as u8).collect();
        memory.bytes_mut().ok_or("it is read-only")?.copy_from_slice(&values);
        let descriptor: OwnedFd = memory.descriptor()?;
        let block = PeerBlock::new(MemoryKind::Host, 4096, File::from(descriptor))?;
        let spec = || TensorSpec { dtype: DType::UInt8, shape: Shape::new(&[100]).unwrap_or_default() };
        let Value::Host(tensor) = block.tensor(spec(), 128, Box::new(Loan))? else {
            return Err("it is no tensor in host memory".into());
        };
        assert_eq!(tensor.bytes()?, &values[128..228]);
        for start in [1, 4032, 4096, u64::MAX - 63] {
            assert!(block.tensor(spec(), start, Box::new(Loan)).is_err(), "{start}");
        }
        Ok(())
    }
}
