//! Shared memory of a link: tensors that the peer borrows by reference to a shared block.

use super::loans::BufferBorrow;
use super::{Locality, Outbound, PushReason, unsendable};
use crate::transport::budget::Budget;
use crate::transport::frame::{Frame, TensorSpec, ValueId};
use device::Error;
use device::shared_block::{FreeListener, MemoryKind};
use graph::Code;
use rustc_hash::{FxHashMap, FxHashSet};

/// Most bytes of shared memory that are borrowed without a request and not returned, so that a peer that has
/// stopped does not hold all memory.
const SHARED_BUDGET: u64 = 1 << 30;
/// Most host memory blocks shared with one peer, because each is a mapping there. Tensors in other blocks are
/// written to the connection. Devices need no limit: they use few blocks, one for each tensor that is shared
/// at a time.
const MAX_HOST_BLOCKS: usize = 2048;

/// The shared memory of a link.
#[derive(Debug)]
pub(super) struct SharedState {
    pub(super) budget: Budget,
    loans: FxHashMap<u64, BufferBorrow>,
    next_loan: u64,
    /// The blocks that the peer has descriptors of.
    blocks: FxHashSet<u64>,
}

impl SharedState {
    pub(super) fn new() -> SharedState {
        SharedState {
            budget: Budget::new(SHARED_BUDGET),
            loans: FxHashMap::default(),
            next_loan: 0,
            blocks: FxHashSet::default(),
        }
    }

    /// Ends the borrowing of a tensor, and returns its memory.
    pub(super) fn end_loan(&mut self, loan: u64) -> Option<BufferBorrow> {
        let loan = self.loans.remove(&loan)?;
        self.budget.release(loan.len() as u64);
        Some(loan)
    }
}

impl Outbound {
    /// Makes the block that contains the memory known to the peer. Returns the block's number; `None` if the
    /// peer cannot map it.
    ///
    /// # Errors
    /// `ResourceExhausted` if no descriptor can be created.
    pub(super) fn share_block(&self, loan: &BufferBorrow) -> device::Result<Option<u64>> {
        let (Locality::SameHost, Some(block)) = (&self.locality, loan.block()) else { return Ok(None) };
        let id = block.sharing().id();
        {
            let blocks = &self.state.lock().shared.blocks;
            if blocks.contains(&id) {
                return Ok(Some(id));
            } else if block.memory_kind() == MemoryKind::Host && blocks.len() >= MAX_HOST_BLOCKS {
                return Ok(None);
            }
        }
        // The lock is not held, because the system call may have to copy the block.
        let descriptor = block.descriptor();
        let descriptor =
            descriptor.map_err(|error| Error::new(Code::ResourceExhausted, error.to_string()))?;
        let mut state = self.state.lock();
        if !state.shared.blocks.contains(&id) {
            let frame = Frame::Block { block: id, len: block.len() as u64, kind: block.memory_kind() };
            self.connection.post_descriptor(&frame, descriptor).map_err(unsendable)?;
            state.shared.blocks.insert(id);
            block.sharing().tell(self.own.clone());
        }
        Ok(Some(id))
    }

    /// Sends a reference to memory in a block that the peer knows.
    pub(super) fn push_shared(
        &self,
        value_id: ValueId,
        spec: TensorSpec,
        (block, memory): (u64, BufferBorrow),
        reason: PushReason,
    ) -> device::Result<bool> {
        let mut state = self.state.lock();
        if !reason.try_reserve(&mut state.shared.budget, memory.len()) {
            return Ok(false);
        }
        let loan = state.shared.next_loan;
        state.shared.next_loan += 1;
        self.post(&Frame::Shared { value_id, spec, block, loan }, None)?;
        state.shared.loans.insert(loan, memory);
        Ok(true)
    }

    /// Abandons the shared memory that will not be returned, after the link was closed: it stays unchanged
    /// for as long as a process reads it, and local writers copy it first.
    pub(in crate::transport) fn abandon_shared(&self) {
        if let Locality::SameProcess(handoff) = &self.locality {
            handoff.clear();
        }
        let loans = std::mem::take(&mut self.state.lock().shared.loans);
        for loan in loans.into_values() {
            if let Some(block) = loan.block() {
                block.sharing().set_read_only();
            }
        }
        self.peer_access.clear();
    }
}

impl FreeListener for Outbound {
    fn freed(&self, block: u64) {
        let mut state = self.state.lock();
        if state.shared.blocks.remove(&block) && self.post(&Frame::BlockFreed { block }, None).is_ok() {
            drop(state);
            // A thread may wait for the memory on this very thread, so the frame must not wait for the end of
            // a cork.
            self.connection.flush_now();
        }
    }
}
