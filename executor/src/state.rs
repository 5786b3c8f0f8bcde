//! What one step of a partition changes: a count for each node and a value for each data edge.

use super::plan::Plan;
use device::value::Value;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Values on their way along data edges, by edge.
///
/// Slots have no locks. A slot is written by its edge's producer before the producer counts down the consumer,
/// and from then on belongs to the consumer, which one thread runs, after it saw the count reach zero.
pub(super) struct Slots(Box<[Slot]>);

#[repr(transparent)]
#[derive(Default)]
struct Slot(UnsafeCell<Value>);

// SAFETY: slots are accessed through unsafe methods only, whose callers have the slot to themselves; `Value`
// may be used from any thread.
unsafe impl Sync for Slot {}

impl Slots {
    pub(super) fn new(count: usize) -> Slots {
        Slots(std::iter::repeat_with(Slot::default).take(count).collect())
    }

    /// Fills an empty slot with what is in `output`; that is left empty if this `is_last` of those that it goes to.
    ///
    /// # Safety
    /// The caller runs the slot's producer, which has not counted down the consumer yet.
    #[inline]
    pub(super) unsafe fn give(&self, slot: usize, output: &mut Value, is_last: bool) {
        // SAFETY: as the caller promises, nobody else has access to the slot now.
        let slot = unsafe { &mut *self.0[slot].0.get() };
        debug_assert!(matches!(slot, Value::None));
        match is_last {
            true => output.move_to(slot),
            false => output.copy_to(slot),
        }
    }

    /// The inputs of a node.
    ///
    /// # Safety
    /// The caller runs the node that the slots belong to, and holds no other borrow of them.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn inputs(&self, slots: Range<usize>) -> &mut [Value] {
        let slots = &self.0[slots];
        let first = UnsafeCell::raw_get(slots.as_ptr().cast::<UnsafeCell<Value>>());
        // SAFETY: `Slot` has the layout of `Value`; the slots are adjacent and, as the caller promises, its own.
        unsafe { std::slice::from_raw_parts_mut(first, slots.len()) }
    }

    /// Whether no slot has a value.
    ///
    /// # Safety
    /// Nobody else may be using the slots.
    pub(super) unsafe fn are_empty(&self) -> bool {
        // SAFETY: the caller has the slots to itself.
        unsafe { self.inputs(0..self.0.len()) }.iter().all(|value| matches!(value, Value::None))
    }

    /// Drops what was left.
    ///
    /// # Safety
    /// Nobody else may be using the slots.
    pub(super) unsafe fn clear(&self) {
        // SAFETY: the caller has the slots to itself.
        empty(unsafe { self.inputs(0..self.0.len()) });
    }
}

/// The state of one step without control flow, reused by later ones.
pub(super) struct State {
    pending: Box<[AtomicU32]>,
    pub(super) slots: Slots,
}

impl State {
    /// The count of a node that waits for nothing more and will not run: some input will never be there.
    pub(super) const DEAD: u32 = 1 << 31;

    pub(super) fn new(plan: &Plan) -> State {
        State {
            pending: plan.pending.iter().map(|&count| AtomicU32::new(count)).collect(),
            slots: Slots::new(plan.num_slots),
        }
    }

    /// Sets the counts for another step. Nobody may be using the state.
    pub(super) fn reset(&self, plan: &Plan) {
        for (pending, &count) in self.pending.iter().zip(&plan.pending) {
            pending.store(count, Ordering::Relaxed);
        }
    }

    /// Counts `node` down; 0 if it waits for nothing any more, or [`State::DEAD`] if besides it will not run.
    /// `alone`: no other thread works on the step.
    pub(super) fn count_down(&self, node: u32, alone: bool) -> u32 {
        let pending = &self.pending[node as usize];
        if alone {
            let left = pending.load(Ordering::Relaxed) - 1;
            pending.store(left, Ordering::Relaxed);
            left
        } else {
            // Release: what this thread wrote into slots. Acquire: what the others did.
            pending.fetch_sub(1, Ordering::AcqRel) - 1
        }
    }

    /// Lets `node` not run. The caller counts it down afterwards.
    pub(super) fn bury(&self, node: u32) {
        self.pending[node as usize].fetch_or(State::DEAD, Ordering::Relaxed);
    }
}

/// Drops what is there. Mostly nothing is, for the consumer took it.
#[inline]
pub(super) fn empty(values: &mut [Value]) {
    values.iter_mut().for_each(Value::discard);
}
