//! Steps of partitions without control flow: each node runs once, and its state is at its own number.

use super::action::Action;
use super::flow::Flow;
use super::run::{Local, Run};
use super::state::{State, empty};
use crate::executor::Executor;
use device::Result;
use device::rendezvous::{RendezvousKey, Sent};
use device::value::Value;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

pub(super) struct Straight(Arc<State>);

thread_local! {
    /// The memory of the last queue of this thread.
    static SPARE: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

impl Flow for Straight {
    type Task = u32;

    const MAY_LOOP: bool = false;

    fn new(executor: &Executor) -> Straight {
        Straight(executor.take_state())
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
        // SAFETY: as the caller promises.
        unsafe { self.0.slots.inputs(slots) }
    }

    fn key(_: &u32, key: &Arc<RendezvousKey>) -> Arc<RendezvousKey> {
        key.clone()
    }

    #[inline]
    fn deliver(run: &Arc<Run<Straight>>, id: u32, started: Option<Instant>, local: &mut Local<Straight>) {
        let plan = &run.executor.plan;
        let planned = &plan.nodes[id as usize];
        if let (Some(recorder), Some(started)) = (&run.recorder, started) {
            recorder.ran(plan, id, started, &local.outputs);
        }
        let Straight(state) = &run.flow;
        for edge in plan.edges(planned) {
            let output = &mut local.outputs[edge.output as usize];
            if matches!(output, Value::None) {
                return run.fail(id, plan.missing(id, edge.output));
            }
            // SAFETY: this thread runs the producer, and counts down the consumer only below.
            unsafe { state.slots.give(edge.slot as usize, output, edge.is_last) };
        }
        empty(&mut local.outputs);
        local.alone = run.is_alone();
        for successor in plan.successors(planned) {
            let to = successor.node();
            if successor.waits_for_one() {
                run.make_ready(to, local);
                continue;
            }
            match state.count_down(to, local.alone) {
                0 => run.make_ready(to, local),
                State::DEAD => bury(run, to, local),
                _ => {}
            }
        }
    }

    fn deliver_dead(run: &Arc<Run<Straight>>, id: u32, local: &mut Local<Straight>) {
        local.alone = run.is_alone();
        let mut open = Vec::new();
        count_down_dead(run, id, local, &mut open);
        open.into_iter().for_each(|id| bury(run, id, local));
    }

    fn end(&self, executor: &Executor, has_failed: bool) -> Result<()> {
        if has_failed {
            // SAFETY: nothing is outstanding, so nobody uses the state, nor will.
            unsafe { self.0.slots.clear() };
        }
        executor.keep_state(self.0.clone());
        Ok(())
    }

    fn take_queue() -> Vec<u32> {
        SPARE.take()
    }

    fn keep_queue(queue: Vec<u32>) {
        SPARE.set(queue);
    }
}

/// Leaves out a node of which some input is dead, and whoever is dead with it. Sends pass the news on; receives
/// take what their other end passes on; triggers run in any case.
#[cold]
fn bury(run: &Arc<Run<Straight>>, id: u32, local: &mut Local<Straight>) {
    let mut open = vec![id];
    while let Some(id) = open.pop() {
        let plan = &run.executor.plan;
        let planned = &plan.nodes[id as usize];
        // SAFETY: every producer of the node has counted it down, and nobody else will run it.
        empty(unsafe { run.flow.0.slots.inputs(plan.slots(planned)) });
        if let Action::Segment(number) = &planned.action {
            run.clear_segment(&id, &plan.segments[*number as usize]);
        }
        match &planned.action {
            Action::Nothing | Action::Recv { .. } => run.make_ready(id, local),
            Action::Send { key, .. } => {
                if let Err(error) = run.step.rendezvous.send(key, Sent::dead()) {
                    return run.fail(id, error);
                }
                count_down_dead(run, id, local, &mut open);
            }
            _ => count_down_dead(run, id, local, &mut open),
        }
    }
}

/// Counts down who waits for a dead node; `open` gets those that wait for nothing more.
fn count_down_dead(run: &Arc<Run<Straight>>, id: u32, local: &mut Local<Straight>, open: &mut Vec<u32>) {
    let plan = &run.executor.plan;
    for successor in plan.successors(&plan.nodes[id as usize]) {
        let to = successor.node();
        run.flow.0.bury(to);
        if run.flow.0.count_down(to, local.alone) == State::DEAD {
            open.push(to);
        }
    }
}
