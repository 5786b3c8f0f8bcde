//! The difference between partitions with and without control flow: the location of a node's state, and the delivery of
//! its outputs. All other code of a run is generic, and compiled once for each flow.

use super::run::{Run, ThreadState};
use crate::executor::Executor;
use device::Result;
use device::kernel::LoopPosition;
use device::rendezvous::RendezvousKey;
use device::value::Value;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The state of one run, and the delivery of values from node to node.
pub(super) trait Flow: Sized + Send + Sync + 'static {
    /// A node that is ready to run.
    type Task: Send + 'static;

    /// True if a run may last arbitrarily long, so that its threads must yield to other steps.
    const MAY_LOOP: bool;

    /// Returns the state for a new run.
    fn new(executor: &Executor) -> Self;

    /// Returns the task of a node that is ready from the start.
    fn source(&self, id: u32) -> Self::Task;

    /// Returns the task's node.
    fn node(task: &Self::Task) -> u32;

    /// Returns whether an input of the task is dead.
    fn is_dead(task: &Self::Task) -> bool;

    /// Returns the inputs of a task.
    ///
    /// # Safety
    /// The caller owns the task, `slots` are those of its node, and the caller has no other borrow of them.
    #[allow(clippy::mut_from_ref)]
    unsafe fn inputs<'a>(&'a self, task: &'a Self::Task, slots: Range<usize>) -> &'a mut [Value];

    /// Returns the rendezvous key of a Send or Recv in the task's iteration.
    fn key(task: &Self::Task, key: &Arc<RendezvousKey>) -> Arc<RendezvousKey>;

    /// Returns the iteration of the task.
    fn position(task: &Self::Task) -> LoopPosition;

    /// Moves `local.outputs` to the consumers of the task's node, and makes the consumers ready that wait for nothing
    /// else. `started` is the time at which the task started, if durations are measured and the node ran.
    fn deliver(
        run: &Arc<Run<Self>>,
        task: Self::Task,
        started: Option<Instant>,
        local: &mut ThreadState<Self>,
    );

    /// Ends a Recv that received a dead tensor; the consumers of the Recv's output are dead.
    fn deliver_dead(run: &Arc<Run<Self>>, task: Self::Task, local: &mut ThreadState<Self>);

    /// Stores the state of the run for reuse, when no thread works on the run any more.
    ///
    /// # Errors
    /// `Internal` if a loop did not end although the run has not failed.
    fn end(&self, executor: &Executor, has_failed: bool) -> Result<()>;

    /// Returns an empty queue of tasks, in the allocation of an earlier queue if there is one.
    fn take_queue() -> Vec<Self::Task> {
        Vec::new()
    }

    /// Stores the allocation of an empty queue of tasks for reuse.
    fn store_queue(_: Vec<Self::Task>) {}
}
