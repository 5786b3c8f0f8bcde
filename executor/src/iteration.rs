//! Loop frames and their iterations: the state of nodes, the number of holds by which an iteration is kept open, and
//! the inputs that wait for an iteration.

use super::frame_plan::{FrameInfo, FramePlan};
use super::state::Slots;
use device::value::Value;
use graph::fingerprint;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// An iteration of a loop frame, with its own state for the nodes of the loop's body.
pub(super) struct Iteration {
    pub(super) frame: Arc<LoopFrame>,
    /// The number of the iteration within its frame.
    pub(super) number: u64,
    /// The numbers of the frame's nodes, its first segment and its first slot in the plan.
    nodes: Range<usize>,
    first_segment: usize,
    pub(super) first_slot: usize,
    /// The number of holds: of nodes that are ready or running, of frames entered from this iteration that are not
    /// over, and of threads that deliver values to it.
    pub(super) holds: AtomicUsize,
    pub(super) state: IterationState,
    /// The loop frames entered from this iteration that are not over.
    pub(super) children: Mutex<SmallVec<[Arc<LoopFrame>; 1]>>,
}

/// A loop frame: one activation of a loop.
pub(super) struct LoopFrame {
    /// The frame's number in the plan.
    pub(super) index: u32,
    /// The identifier in rendezvous keys, the same in all tasks.
    pub(super) id: u64,
    /// The iteration that the loop was entered from; `None` for the outermost frame.
    pub(super) parent: Option<Arc<Iteration>>,
    pub(super) iterations: Mutex<Iterations>,
}

/// The iterations of a loop frame.
pub(super) struct Iterations {
    /// The iterations that are not over, in the order of their numbers.
    pub(super) open: VecDeque<Arc<Iteration>>,
    /// The number of the newest iteration.
    pub(super) newest: u64,
    /// The constant Enters and their values, which each iteration receives; a dead Enter has [`Value::None`].
    pub(super) constants: IterationInputs,
    /// The NextIterations whose values wait for the next iteration, which may not start yet.
    pub(super) waiting: IterationInputs,
    /// The number of Enters that have not run.
    pub(super) enters_left: usize,
    /// The dead Exits of the newest iteration. If that iteration is the loop's last, the consumers of these Exits are
    /// dead too.
    pub(super) dead_exits: Vec<u32>,
    pub(super) is_over: bool,
    /// Iterations that are over and have empty slots, for reuse.
    pub(super) spare: SmallVec<[Arc<Iteration>; 2]>,
}

/// The inputs of an iteration: the nodes outside the iteration that produced them, and their values; a dead node has
/// [`Value::None`].
pub(super) type IterationInputs = SmallVec<[(u32, Value); 2]>;

/// The state of a frame's nodes in one iteration: a pending count for each node, and a slot for each of their inputs.
pub(super) struct IterationState {
    counts: Box<[AtomicU64]>,
    pub(super) slots: Slots,
}

/// The bit fields of a pending count: the number of producers that the node waits for, and for a Merge the number of
/// dead inputs.
const PENDING_MASK: u64 = (1 << 31) - 1;
pub(super) const ONE_DEAD_INPUT: u64 = 1 << 31;
pub(super) const DEAD_INPUTS_MASK: u64 = (1 << 31) - 1;
/// The bit of a pending count that is set when an input of the node is dead.
pub(super) const DEAD: u64 = 1 << 62;
/// The bit of a pending count that is set when a Merge has taken an input, or all inputs of the Merge are dead.
pub(super) const DECIDED: u64 = 1 << 63;

/// The maximum number of idle iteration states that are kept for each frame.
const MAX_IDLE_ITERATIONS: usize = 64;

impl IterationState {
    fn new(info: &FrameInfo) -> IterationState {
        IterationState {
            counts: info.nodes.clone().chain(info.segments.clone()).map(|_| AtomicU64::new(0)).collect(),
            slots: Slots::new(info.slots.len()),
        }
    }

    /// Returns the state for a new iteration: an idle state if there is one, else a new state.
    fn take(plan: &FramePlan, info: &FrameInfo) -> IterationState {
        let idle = info.idle.lock().pop();
        let state = idle.unwrap_or_else(|| IterationState::new(info));
        state.reset(plan, info);
        state
    }

    /// Sets the pending counts to their values at the start of an iteration. No thread may be using the state.
    pub(super) fn reset(&self, plan: &FramePlan, info: &FrameInfo) {
        let starts = plan.counts[info.nodes.clone()].iter().chain(&plan.counts[info.segments.clone()]);
        for (count, &start) in self.counts.iter().zip(starts) {
            count.store(start, Ordering::Relaxed);
        }
    }

    pub(super) fn store(self, info: &FrameInfo) {
        // SAFETY: the caller owns the state.
        unsafe { self.slots.clear() };
        let mut idle = info.idle.lock();
        if idle.len() < MAX_IDLE_ITERATIONS {
            idle.push(self);
        }
    }

    /// Adds `by` to the pending count with index `node`, modulo 2^64, and returns the previous count. `alone` is true
    /// if no other thread works on the run.
    pub(super) fn add(&self, node: usize, by: u64, alone: bool) -> u64 {
        let count = &self.counts[node];
        if alone {
            let before = count.load(Ordering::Relaxed);
            count.store(before.wrapping_add(by), Ordering::Relaxed);
            before
        } else {
            // Release publishes this thread's writes to slots; acquire makes those of other threads visible.
            count.fetch_add(by, Ordering::AcqRel)
        }
    }

    /// Sets a bit of the pending count with index `node`, and returns the previous count.
    pub(super) fn set(&self, node: usize, flag: u64, alone: bool) -> u64 {
        let count = &self.counts[node];
        if alone {
            let before = count.load(Ordering::Relaxed);
            count.store(before | flag, Ordering::Relaxed);
            before
        } else {
            count.fetch_or(flag, Ordering::AcqRel)
        }
    }

    /// Decrements a node's pending count. If the node is then ready, returns whether the node is dead.
    pub(super) fn count_down(&self, node: usize, alone: bool) -> Option<bool> {
        let before = self.add(node, u64::MAX, alone);
        (before & PENDING_MASK == 1).then_some(before & DEAD != 0)
    }
}

impl Iteration {
    /// Creates iteration number `number` of a frame, with one hold, which keeps the iteration open until the caller
    /// releases it.
    pub(super) fn new(plan: &FramePlan, frame: Arc<LoopFrame>, number: u64) -> Iteration {
        let info = &plan.frames[frame.index as usize];
        Iteration {
            frame,
            number,
            nodes: info.nodes.clone(),
            first_segment: info.segments.start,
            first_slot: info.slots.start,
            holds: AtomicUsize::new(1),
            state: IterationState::take(plan, info),
            children: Mutex::default(),
        }
    }

    /// Reuses an iteration that is over as iteration number `number`, with one hold, which keeps the iteration open
    /// until the caller releases it. Returns `None` if another thread has not yet dropped its reference to the
    /// iteration.
    fn reuse(mut self: Arc<Iteration>, plan: &FramePlan, number: u64) -> Option<Arc<Iteration>> {
        let iteration = Arc::get_mut(&mut self)?;
        iteration.number = number;
        *iteration.holds.get_mut() = 1;
        iteration.state.reset(plan, &plan.frames[iteration.frame.index as usize]);
        Some(self)
    }

    /// Returns the index of the pending count of a node or segment of the frame in the iteration's state.
    pub(super) fn count_index(&self, unit: u32) -> usize {
        match (unit as usize).checked_sub(self.first_segment) {
            Some(segment) => self.nodes.len() + segment,
            None => unit as usize - self.nodes.start,
        }
    }

    /// Keeps the iteration open until a matching call of [`Iteration::release`], by incrementing the number of holds.
    /// The caller has work that belongs to the iteration, such as values to deliver or a frame entered from it.
    pub(super) fn hold(&self) {
        self.holds.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends one hold of the iteration. Returns whether it was the last one, after which the iteration is over.
    pub(super) fn release(&self) -> bool {
        // Release publishes this thread's work in the iteration; acquire makes that of other threads visible.
        self.holds.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Returns the frame of the loop `index` that is entered from this iteration. The loop's first Enter creates the
    /// frame.
    pub(super) fn child(self: &Arc<Iteration>, plan: &FramePlan, index: u32) -> Arc<LoopFrame> {
        let mut children = self.children.lock();
        if let Some(child) = children.iter().find(|frame| frame.index == index) {
            return child.clone();
        }
        let info = &plan.frames[index as usize];
        let id = fingerprint::combine(self.frame.id, fingerprint::combine(self.number, info.hash));
        let frame = Arc::new(LoopFrame {
            index,
            id,
            parent: Some(self.clone()),
            iterations: Mutex::new(Iterations::new(info.enters)),
        });
        // The hold keeps the parent iteration open until the frame is over. The frame's first iteration starts without
        // a hold, because it is not over before all Enters have run.
        self.hold();
        let first = Iteration::new(plan, frame.clone(), 0);
        first.holds.store(0, Ordering::Relaxed);
        frame.iterations.lock().open.push_back(Arc::new(first));
        children.push(frame.clone());
        frame
    }
}

impl LoopFrame {
    /// Returns a hash of the numbers of the iterations in which the frame is nested; 0 for the outermost frame.
    pub(super) fn enclosing_iterations(&self) -> u64 {
        let around =
            std::iter::successors(self.parent.as_deref(), |iteration| iteration.frame.parent.as_deref());
        around.fold(0, |hash, iteration| fingerprint::combine(hash, iteration.number + 1))
    }
}

impl Iterations {
    pub(super) fn new(enters: usize) -> Iterations {
        Iterations {
            open: VecDeque::new(),
            newest: 0,
            constants: SmallVec::new(),
            waiting: SmallVec::new(),
            enters_left: enters,
            dead_exits: Vec::new(),
            is_over: false,
            spare: SmallVec::new(),
        }
    }

    /// Returns the inputs of the iteration that was just opened: the values of NextIterations that waited for it, which
    /// are removed, and the values of constant Enters.
    pub(super) fn inputs(&mut self) -> IterationInputs {
        let mut all = std::mem::take(&mut self.waiting);
        all.extend(self.constants.iter().cloned());
        all
    }

    /// Opens the next iteration, whose only hold passes to the caller.
    pub(super) fn advance(&mut self, frame: &Arc<LoopFrame>, plan: &FramePlan) -> Arc<Iteration> {
        self.newest += 1;
        self.dead_exits.clear();
        let reused = self.spare.pop().and_then(|iteration| iteration.reuse(plan, self.newest));
        let iteration = reused.unwrap_or_else(|| Arc::new(Iteration::new(plan, frame.clone(), self.newest)));
        self.open.push_back(iteration.clone());
        iteration
    }

    /// Closes the oldest open iterations, up to the first that is not over. Returns the closed iterations whose slots
    /// have values for dead nodes; the caller drops them after the lock is released.
    pub(super) fn close_first(&mut self) -> SmallVec<[Arc<Iteration>; 2]> {
        let mut with_dead_values = SmallVec::new();
        // Acquire makes the work in the iteration visible, so that its state can be reused.
        let is_over = |iteration: &Arc<Iteration>| iteration.holds.load(Ordering::Acquire) == 0;
        while self.open.front().is_some_and(is_over)
            && let Some(iteration) = self.open.pop_front()
        {
            // SAFETY: no thread works in the iteration any more.
            match unsafe { iteration.state.slots.are_empty() } {
                true => self.spare.push(iteration),
                false => with_dead_values.push(iteration),
            }
        }
        with_dead_values
    }
}
