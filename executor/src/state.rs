//! The mutable state of a run: a pending count for each node and a value for each data edge.

use super::plan::Plan;
use device::value::Value;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// The values of a partition's data edges, indexed by slot.
///
/// Slots have no locks. The producer of a slot's value writes the slot before it decrements the consumer's pending
/// count. The slot then belongs to the consumer, which runs on the one thread that saw the count reach zero.
pub(super) struct Slots(Box<[Slot]>);

#[repr(transparent)]
#[derive(Default)]
struct Slot(UnsafeCell<Value>);

// SAFETY: slots are accessed through unsafe methods only, whose callers have exclusive access to the slot; `Value` may
// be used from any thread.
unsafe impl Sync for Slot {}

impl Slots {
    pub(super) fn new(count: usize) -> Slots {
        Slots(std::iter::repeat_with(Slot::default).take(count).collect())
    }

    /// Fills an empty slot with a copy of `output`, or moves `output` there if `is_last`, which is true for the
    /// output's last edge.
    ///
    /// # Safety
    /// The caller runs the slot's producer, which has not decremented the consumer's count yet.
    #[inline]
    pub(super) unsafe fn fill(&self, slot: usize, output: &mut Value, is_last: bool) {
        // SAFETY: the caller promises that no other thread has access to the slot.
        let slot = unsafe { &mut *self.0[slot].0.get() };
        debug_assert!(matches!(slot, Value::None));
        match is_last {
            true => output.move_to(slot),
            false => output.copy_to(slot),
        }
    }

    /// Returns the inputs of a node.
    ///
    /// # Safety
    /// The caller runs the node that the slots belong to, and has no other borrow of them.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn inputs(&self, slots: Range<usize>) -> &mut [Value] {
        let slots = &self.0[slots];
        let first = UnsafeCell::raw_get(slots.as_ptr().cast::<UnsafeCell<Value>>());
        // SAFETY: `Slot` has the layout of `Value`; the slots are adjacent, and the caller promises exclusive access.
        unsafe { std::slice::from_raw_parts_mut(first, slots.len()) }
    }

    /// Returns whether no slot has a value.
    ///
    /// # Safety
    /// No other thread may be using the slots.
    pub(super) unsafe fn are_empty(&self) -> bool {
        // SAFETY: the caller has exclusive access to the slots.
        unsafe { self.inputs(0..self.0.len()) }.iter().all(|value| matches!(value, Value::None))
    }

    /// Drops all remaining values.
    ///
    /// # Safety
    /// No other thread may be using the slots.
    pub(super) unsafe fn clear(&self) {
        // SAFETY: the caller has exclusive access to the slots.
        discard_all(unsafe { self.inputs(0..self.0.len()) });
    }
}

/// The state of a run without control flow, reused by later runs.
pub(super) struct RunState {
    pending: Box<[AtomicU32]>,
    pub(super) slots: Slots,
}

impl RunState {
    /// The pending count of a node that waits for nothing more and does not run, because an input is dead.
    pub(super) const DEAD: u32 = 1 << 31;

    pub(super) fn new(plan: &Plan) -> RunState {
        RunState {
            pending: plan.pending.iter().map(|&count| AtomicU32::new(count)).collect(),
            slots: Slots::new(plan.num_slots),
        }
    }

    /// Sets the pending counts to their values at the start of a run. No thread may be using the state.
    pub(super) fn reset(&self, plan: &Plan) {
        for (pending, &count) in self.pending.iter().zip(&plan.pending) {
            pending.store(count, Ordering::Relaxed);
        }
    }

    /// Decrements the count of `node`. Returns 0 if the node is ready, or [`RunState::DEAD`] if it has a dead input and
    /// waits for nothing more. `alone` is true if no other thread works on the run.
    pub(super) fn count_down(&self, node: u32, alone: bool) -> u32 {
        let pending = &self.pending[node as usize];
        if alone {
            let left = pending.load(Ordering::Relaxed) - 1;
            pending.store(left, Ordering::Relaxed);
            left
        } else {
            // Release publishes this thread's writes to slots; acquire makes those of other threads visible.
            pending.fetch_sub(1, Ordering::AcqRel) - 1
        }
    }

    /// Marks `node` as having a dead input. The caller decrements the count afterwards.
    pub(super) fn mark_dead(&self, node: u32) {
        self.pending[node as usize].fetch_or(RunState::DEAD, Ordering::Relaxed);
    }
}

/// Drops the values left in a node's inputs or outputs. Usually there are none, because the consumers took them.
#[inline]
pub(super) fn discard_all(values: &mut [Value]) {
    values.iter_mut().for_each(Value::discard);
}
