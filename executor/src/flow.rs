//! What differs between partitions with and without control flow: where the state of a node is, and whom its
//! end makes ready. The rest of a step is the same code, compiled once for each.

use super::run::{Local, Run};
use crate::executor::Executor;
use device::Result;
use device::rendezvous::RendezvousKey;
use device::value::Value;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// How a step of a partition goes on from node to node.
pub(super) trait Flow: Sized + Send + Sync + 'static {
    /// One run of a node that waits for nothing more.
    type Task: Send + 'static;

    /// Whether a step may go on for any time, so that its threads must give way to other steps.
    const MAY_LOOP: bool;

    fn new(executor: &Executor) -> Self;

    /// The run of a node that waits for nothing from the start.
    fn source(&self, id: u32) -> Self::Task;

    fn node(task: &Self::Task) -> u32;

    /// Whether some input of the run will never be there.
    fn is_dead(task: &Self::Task) -> bool;

    /// The inputs of a run.
    ///
    /// # Safety
    /// The caller has the task, `slots` are of its node, and it holds no other borrow of them.
    #[allow(clippy::mut_from_ref)]
    unsafe fn inputs<'a>(&'a self, task: &'a Self::Task, slots: Range<usize>) -> &'a mut [Value];

    /// Under which key a Send or Recv meets its other end.
    fn key(task: &Self::Task, key: &Arc<RendezvousKey>) -> Arc<RendezvousKey>;

    /// Gives what the run left in `local.outputs` to the node's consumers, and makes ready who waited for it
    /// last. `started` is when it started, if it did and clocks are read.
    fn deliver(run: &Arc<Run<Self>>, task: Self::Task, started: Option<Instant>, local: &mut Local<Self>);

    /// As [`Flow::deliver`], of a run that received the news that there is no tensor.
    fn deliver_dead(run: &Arc<Run<Self>>, task: Self::Task, local: &mut Local<Self>);

    /// Takes back what the step used; whether all came to an end. Nobody works on the step any more.
    fn end(&self, executor: &Executor, has_failed: bool) -> Result<()>;

    /// An empty queue, with memory of an earlier one if there is some.
    fn take_queue() -> Vec<Self::Task> {
        Vec::new()
    }

    /// Takes back an empty queue.
    fn keep_queue(_: Vec<Self::Task>) {}
}
