//! Runs of partitions without control flow: each node runs once, so the node's number identifies its state.

use super::action::Action;
use super::flow::Flow;
use super::run::{Run, ThreadState};
use super::state::{RunState, discard_all};
use crate::executor::Executor;
use device::Result;
use device::kernel::LoopPosition;
use device::rendezvous::{RendezvousKey, Sent};
use device::value::Value;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The state of a run without control flow.
pub(super) struct StraightFlow(Arc<RunState>);

thread_local! {
    /// The allocation of the queue that this thread used last, for reuse.
    static SPARE_QUEUE: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

impl Flow for StraightFlow {
    type Task = u32;

    const MAY_LOOP: bool = false;

    fn new(executor: &Executor) -> StraightFlow {
        StraightFlow(executor.take_state())
    }

    fn source(&self, id: u32) -> u32 {
        id
    }

    #[inline]
    fn node(task: &u32) -> u32 {
        *task
    }

    #[inline]
    fn is_dead(_: &u32) -> bool {
        false
    }

    #[inline]
    unsafe fn inputs<'a>(&'a self, _: &'a u32, slots: Range<usize>) -> &'a mut [Value] {
        // SAFETY: the conditions of the callee are those of this function, which the caller fulfils.
        unsafe { self.0.slots.inputs(slots) }
    }

    fn key(_: &u32, key: &Arc<RendezvousKey>) -> Arc<RendezvousKey> {
        key.clone()
    }

    fn position(_: &u32) -> LoopPosition {
        LoopPosition::default()
    }

    #[inline]
    fn deliver(
        run: &Arc<Run<StraightFlow>>,
        id: u32,
        started: Option<Instant>,
        local: &mut ThreadState<StraightFlow>,
    ) {
        let plan = &run.executor.plan;
        let planned = &plan.nodes[id as usize];
        if let (Some(recorder), Some(started)) = (&run.recorder, started) {
            recorder.record(plan, id, started, &local.outputs);
        }
        let StraightFlow(state) = &run.flow;
        for edge in plan.edges(planned) {
            let output = &mut local.outputs[edge.output as usize];
            if matches!(output, Value::None) {
                return run.fail(id, plan.missing_output_error(id, edge.output));
            }
            // SAFETY: this thread runs the producer, and decrements the consumer's count only below.
            unsafe { state.slots.fill(edge.slot as usize, output, edge.is_last) };
        }
        discard_all(&mut local.outputs);
        local.alone = run.is_alone();
        for successor in plan.successors(planned) {
            let to = successor.node();
            if successor.is_sole_wait() {
                run.make_ready(to, local);
                continue;
            }
            match state.count_down(to, local.alone) {
                0 => run.make_ready(to, local),
                RunState::DEAD => end_dead(run, to, local),
                _ => {}
            }
        }
    }

    fn deliver_dead(run: &Arc<Run<StraightFlow>>, id: u32, local: &mut ThreadState<StraightFlow>) {
        local.alone = run.is_alone();
        let mut dead = Vec::new();
        count_down_dead(run, id, local, &mut dead);
        dead.into_iter().for_each(|id| end_dead(run, id, local));
    }

    fn end(&self, executor: &Executor, has_failed: bool) -> Result<()> {
        if has_failed {
            // SAFETY: nothing is outstanding, so no thread uses the state, now or later.
            unsafe { self.0.slots.clear() };
        }
        executor.store_state(self.0.clone());
        Ok(())
    }

    fn take_queue() -> Vec<u32> {
        SPARE_QUEUE.take()
    }

    fn store_queue(queue: Vec<u32>) {
        SPARE_QUEUE.set(queue);
    }
}

/// Ends a node with a dead input without running it, and also the nodes that are dead because of it. A Send still sends
/// the mark of a dead tensor, a Recv still receives, and a ControlTrigger runs in any case.
#[cold]
fn end_dead(run: &Arc<Run<StraightFlow>>, id: u32, local: &mut ThreadState<StraightFlow>) {
    let mut dead = vec![id];
    while let Some(id) = dead.pop() {
        let plan = &run.executor.plan;
        let planned = &plan.nodes[id as usize];
        // SAFETY: every producer of the node has decremented its count, and no other thread runs it.
        discard_all(unsafe { run.flow.0.slots.inputs(plan.slots(planned)) });
        if let Action::Segment(number) = &planned.action {
            run.clear_segment(&id, &plan.segments[*number as usize]);
        }
        match &planned.action {
            Action::Trigger | Action::Recv { .. } => run.make_ready(id, local),
            Action::Send { key, .. } => {
                if let Err(error) = run.step.rendezvous.send(key, Sent::dead()) {
                    return run.fail(id, error);
                }
                count_down_dead(run, id, local, &mut dead);
            }
            _ => count_down_dead(run, id, local, &mut dead),
        }
    }
}

/// Marks the consumers of a dead node as dead and decrements their counts. Consumers that wait for nothing more are
/// added to `dead`.
fn count_down_dead(
    run: &Arc<Run<StraightFlow>>,
    id: u32,
    local: &mut ThreadState<StraightFlow>,
    dead: &mut Vec<u32>,
) {
    let plan = &run.executor.plan;
    for successor in plan.successors(&plan.nodes[id as usize]) {
        let to = successor.node();
        run.flow.0.mark_dead(to);
        if run.flow.0.count_down(to, local.alone) == RunState::DEAD {
            dead.push(to);
        }
    }
}
