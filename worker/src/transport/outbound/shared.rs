//! Pushes of tensors by reference to a shared block, which the peer borrows.

use super::loans::BufferBorrow;
use super::{Locality, Outbound, PushReason, unsendable};
use crate::transport::budget::Budget;
use crate::transport::frame::{BlockPosition, Frame, TensorSpec, ValueId};
use device::Error;
use device::shared_block::{FreeListener, MemoryKind};
use graph::Code;
use rustc_hash::{FxHashMap, FxHashSet};

/// Maximum number of bytes of shared memory that a peer borrows of tensors it has not requested, so that a peer that
/// has stopped does not hold all memory.
const SHARED_BUDGET: u64 = 1 << 30;
/// Maximum number of blocks of host memory that are shared with one peer, because the peer maps each of them. Tensors
/// in further blocks are written to the connection. Blocks of device memory need no limit, because there is only one
/// for each tensor that is shared at the time.
const MAX_HOST_BLOCKS: usize = 2048;

/// The blocks shared with the peer of a link, and the tensors in them that the peer borrows.
#[derive(Debug)]
pub(super) struct SharedState {
    pub(super) budget: Budget,
    loans: FxHashMap<u64, BufferBorrow>,
    next_loan: u64,
    /// The numbers of the blocks whose descriptors the peer has.
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

    /// Records that the peer borrows a tensor. Returns the number of the loan.
    pub(super) fn add_loan(&mut self, memory: BufferBorrow) -> u64 {
        let loan = self.next_loan;
        self.next_loan += 1;
        self.loans.insert(loan, memory);
        loan
    }

    /// Ends the borrowing of a tensor. Returns the tensor's memory.
    pub(super) fn end_loan(&mut self, loan: u64) -> Option<BufferBorrow> {
        let loan = self.loans.remove(&loan)?;
        // A lent tensor counts as pushed: the receiver holds a copy of it until it is consumed.
        if !matches!(loan, BufferBorrow::Lent(_)) {
            self.budget.release(loan.len() as u64);
        }
        Some(loan)
    }
}

impl Outbound {
    /// Sends the peer the descriptor of the block that contains the memory, unless the peer already has the descriptor.
    /// Returns the memory's position in the block; `None` if the memory cannot be shared with the peer.
    ///
    /// # Errors
    /// `ResourceExhausted` if no descriptor can be created.
    pub(super) fn share_block(&self, loan: &BufferBorrow) -> device::Result<Option<BlockPosition>> {
        let (Locality::SameHost, Some((block, start))) = (&self.locality, loan.block()) else {
            return Ok(None);
        };
        let id = block.sharing().id();
        let position = BlockPosition { block: id, start: start as u64 };
        {
            let blocks = &self.state.lock().shared.blocks;
            if blocks.contains(&id) {
                return Ok(Some(position));
            } else if block.memory_kind() == MemoryKind::Host && blocks.len() >= MAX_HOST_BLOCKS {
                return Ok(None);
            }
        }
        // The lock is not held during this call, because it may have to copy the block.
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
        Ok(Some(position))
    }

    /// Sends a tensor as a reference to memory in a block whose descriptor the peer has. Returns false if the peer
    /// already borrows [`SHARED_BUDGET`] bytes.
    pub(super) fn push_shared(
        &self,
        value_id: ValueId,
        spec: TensorSpec,
        (at, memory): (BlockPosition, BufferBorrow),
        reason: PushReason,
    ) -> device::Result<bool> {
        let mut state = self.state.lock();
        if !reason.try_reserve(&mut state.shared.budget, memory.len()) {
            return Ok(false);
        }
        let loan = state.shared.next_loan;
        state.shared.next_loan += 1;
        self.post(&Frame::Shared { value_id, spec, at, loan }, None)?;
        state.shared.loans.insert(loan, memory);
        Ok(true)
    }

    /// Abandons the memory that the peer borrows, after the link was closed: the memory stays unchanged,
    /// because the peer may still read it, and local writers copy it before they write.
    pub(in crate::transport) fn abandon_shared(&self) {
        if let Locality::SameProcess(handoff) = &self.locality {
            handoff.clear();
        }
        // The peer can no longer read memory whose registration has ended.
        drop(std::mem::take(&mut *self.lending.lock()));
        let loans = std::mem::take(&mut self.state.lock().shared.loans);
        for loan in loans.into_values() {
            if let Some((block, _)) = loan.block() {
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
            // The frame must not wait for the end of a cork, because this thread may be about to wait for the
            // freed memory.
            self.connection.flush_now();
        }
    }
}
