//! Runs of partitions with control flow: the delivery of values, and of the marks of dead tensors, to the nodes of
//! loops.
//!
//! The nodes of a loop run once in each iteration. An iteration counts its holds: the nodes that are ready or running
//! in it, the frames entered from it, and the threads that deliver values to it. Once the count is zero and all earlier
//! iterations are over, the iteration is over too, and its state is used for a later one. Nodes outside all loops run
//! in the only iteration of the outermost frame.

use super::action::Action;
use super::flow::Flow;
use super::frame_plan::NodeKind;
use super::iteration::{
    DEAD, DEAD_INPUTS_MASK, DECIDED, Iteration, IterationInputs, Iterations, LoopFrame, ONE_DEAD_INPUT,
};
use super::run::{Run, ThreadState};
use super::state::discard_all;
use crate::executor::{Executor, MAX_IDLE_STATES};
use device::kernel::LoopPosition;
use device::rendezvous::RendezvousKey;
use device::value::Value;
use device::{Error, Result};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The state of a run with control flow: the only iteration of the outermost frame.
pub(super) struct FramedFlow {
    root: Arc<Iteration>,
}

/// A node that is ready in an iteration, on which the task has a hold.
pub(super) struct Task {
    iteration: Arc<Iteration>,
    node: u32,
    is_dead: bool,
}

/// A ready node without its iteration, which the caller knows.
#[derive(Clone, Copy)]
struct ReadyNode {
    node: u32,
    is_dead: bool,
}

impl ReadyNode {
    fn task(self, iteration: Arc<Iteration>) -> Task {
        Task { iteration, node: self.node, is_dead: self.is_dead }
    }
}

impl Flow for FramedFlow {
    type Task = Task;

    const MAY_LOOP: bool = true;

    fn new(executor: &Executor) -> FramedFlow {
        let plan = &executor.plan.frames;
        if let Some(root) = plan.roots.lock().pop() {
            root.state.reset(plan, &plan.frames[0]);
            return FramedFlow { root };
        }
        let iterations = Mutex::new(Iterations::new(0));
        let frame = Arc::new(LoopFrame { index: 0, id: 0, parent: None, iterations });
        FramedFlow { root: Arc::new(Iteration::new(plan, frame, 0)) }
    }

    fn source(&self, node: u32) -> Task {
        self.root.hold();
        Task { iteration: self.root.clone(), node, is_dead: false }
    }

    fn node(task: &Task) -> u32 {
        task.node
    }

    fn is_dead(task: &Task) -> bool {
        task.is_dead
    }

    unsafe fn inputs<'a>(&'a self, task: &'a Task, slots: Range<usize>) -> &'a mut [Value] {
        let first = task.iteration.first_slot;
        // SAFETY: the conditions of the callee are those of this function, which the caller fulfils.
        unsafe { task.iteration.state.slots.inputs(slots.start - first..slots.end - first) }
    }

    fn key(task: &Task, key: &Arc<RendezvousKey>) -> Arc<RendezvousKey> {
        match &*task.iteration {
            Iteration { frame, .. } if frame.parent.is_none() => key.clone(),
            Iteration { frame, number, .. } => Arc::new(key.in_frame(frame.id, *number)),
        }
    }

    fn position(task: &Task) -> LoopPosition {
        let Iteration { frame, number, .. } = &*task.iteration;
        LoopPosition { frame: frame.id, iteration: *number, enclosing: frame.enclosing_iterations() }
    }

    fn deliver(
        run: &Arc<Run<FramedFlow>>,
        task: Task,
        started: Option<Instant>,
        local: &mut ThreadState<FramedFlow>,
    ) {
        let executor = &run.executor;
        if let (Some(recorder), Some(started)) = (&run.recorder, started) {
            recorder.record(&executor.plan, task.node, started, &local.outputs);
        }
        let Task { iteration, node, is_dead } = task;
        local.alone = run.is_alone();
        let planned = &executor.plan.nodes[node as usize];
        if !is_dead
            && matches!(planned.action, Action::Kernel(_))
            && let Some(edge) = executor.plan.edges(planned).iter().find(|e| is_missing(e.output, local))
        {
            return run.fail(node, executor.plan.missing_output_error(node, edge.output));
        }
        match executor.plan.frames.kinds[node as usize] {
            NodeKind::Plain | NodeKind::Merge(_) => {
                let mut next = None;
                deliver_outputs(run, &iteration, node, is_dead, &mut next, local);
                pass_hold_on(run, iteration, next, local);
            }
            NodeKind::Enter { frame, is_constant } => {
                let frame = iteration.child(&executor.plan.frames, frame);
                deliver_enter(run, &frame, node, is_dead, is_constant, local);
                release_hold(run, iteration, local);
            }
            NodeKind::Exit => deliver_exit(run, iteration, node, is_dead, local),
            NodeKind::NextIteration => deliver_next_iteration(run, iteration, node, is_dead, local),
        }
    }

    /// Ends a Recv that has received a dead tensor: the consumers of its output are dead, but nodes that wait for the
    /// Recv only by a control edge are not.
    fn deliver_dead(run: &Arc<Run<FramedFlow>>, task: Task, local: &mut ThreadState<FramedFlow>) {
        let Task { iteration, node, is_dead } = task;
        local.alone = run.is_alone();
        let mut next = None;
        deliver_outputs(run, &iteration, node, is_dead, &mut next, local);
        pass_hold_on(run, iteration, next, local);
    }

    fn end(&self, executor: &Executor, has_failed: bool) -> Result<()> {
        let plan = &executor.plan.frames;
        let mut open: Vec<Arc<LoopFrame>> = self.root.children.lock().drain(..).collect();
        let stuck = open.first().map(|frame| {
            let info = &plan.frames[frame.index as usize];
            let left = frame.iterations.lock().enters_left;
            Error::internal(format!("the loop '{}' did not end: {left} of its Enters never ran", info.name))
        });
        // Frames and iterations reference each other. Inner frames are dropped before those that contain them, so that
        // drops do not recurse.
        let mut all = Vec::new();
        while let Some(frame) = open.pop() {
            {
                let iterations = &mut *frame.iterations.lock();
                iterations.spare.clear();
                for iteration in iterations.open.drain(..) {
                    open.extend(iteration.children.lock().drain(..));
                }
            }
            all.push(frame);
        }
        while all.pop().is_some() {}
        // SAFETY: nothing is outstanding, so no thread uses the state, now or later.
        unsafe { self.root.state.slots.clear() };
        self.root.holds.store(1, Ordering::Relaxed);
        let mut roots = plan.roots.lock();
        if roots.len() < MAX_IDLE_STATES {
            roots.push(self.root.clone());
        }
        match stuck {
            Some(stuck) if !has_failed => Err(stuck),
            _ => Ok(()),
        }
    }
}

fn is_missing(output: u32, local: &ThreadState<FramedFlow>) -> bool {
    matches!(local.outputs.get(output as usize), None | Some(Value::None))
}

/// Delivers `local.outputs` to the node's consumers in iteration `to`, on which the caller has a hold. All consumers
/// that become ready are queued, except one, which is returned in `next` to take over the caller's hold. The consumers
/// of an output without a value are dead; if `is_dead`, so are the consumers by control edge.
fn deliver_outputs(
    run: &Arc<Run<FramedFlow>>,
    to: &Arc<Iteration>,
    node: u32,
    is_dead: bool,
    next: &mut Option<ReadyNode>,
    local: &mut ThreadState<FramedFlow>,
) {
    let plan = &run.executor.plan;
    let planned = &plan.nodes[node as usize];
    let mut ready = |node: u32, is_dead: bool, local: &mut ThreadState<FramedFlow>| {
        let is_dead = is_dead && !matches!(plan.nodes[node as usize].action, Action::Trigger);
        if let Some(before) = next.replace(ReadyNode { node, is_dead }) {
            to.hold();
            run.make_ready(before.task(to.clone()), local);
        }
    };
    let mut some_dead = is_dead;
    for (edge, target) in plan.edges(planned).iter().zip(plan.frames.targets(plan.edge_range(planned))) {
        let output =
            local.outputs.get_mut(edge.output as usize).filter(|output| !matches!(output, Value::None));
        let (count_index, slot) = (to.count_index(target.node), edge.slot as usize - to.first_slot);
        if !target.is_merge {
            match output {
                // SAFETY: this thread runs the producer, and decrements the consumer's count only below.
                Some(output) => unsafe { to.state.slots.fill(slot, output, edge.is_last) },
                None => {
                    some_dead = true;
                    to.state.set(count_index, DEAD, local.alone);
                }
            }
            continue;
        }
        if let Some(output) = output {
            if to.state.set(count_index, DECIDED, local.alone) & DECIDED != 0 {
                continue;
            }
            // SAFETY: only this thread has selected the Merge's input, and it decrements the Merge's count only below.
            unsafe { to.state.slots.fill(slot, output, edge.is_last) };
        } else {
            let before = to.state.add(count_index, ONE_DEAD_INPUT, local.alone);
            let dead = ((before >> 31) & DEAD_INPUTS_MASK) as u32 + 1;
            let kinds = &plan.frames.kinds;
            // A dead Enter means that the loop is not entered, so that the loop's NextIteration will have no value
            // either.
            let is_entry = matches!(kinds[node as usize], NodeKind::Enter { .. });
            if kinds[target.node as usize] != NodeKind::Merge(dead) && !is_entry {
                continue;
            }
            if to.state.set(count_index, DECIDED, local.alone) & DECIDED != 0 {
                continue;
            }
            to.state.set(count_index, DEAD, local.alone);
        }
        if let Some(is_dead) = to.state.count_down(count_index, local.alone) {
            ready(target.node, is_dead, local);
        }
    }
    discard_all(&mut local.outputs);
    for successor in plan.successors(planned) {
        let waiting = successor.node();
        let count_index = to.count_index(waiting);
        if !some_dead && successor.is_sole_wait() {
            ready(waiting, false, local);
            continue;
        }
        if is_dead && !matches!(plan.frames.kinds[waiting as usize], NodeKind::Merge(_)) {
            to.state.set(count_index, DEAD, local.alone);
        }
        if let Some(is_dead) = to.state.count_down(count_index, local.alone) {
            ready(waiting, is_dead, local);
        }
    }
}

/// Passes a hold on an iteration to a node that is ready in it, or releases the hold.
fn pass_hold_on(
    run: &Arc<Run<FramedFlow>>,
    iteration: Arc<Iteration>,
    next: Option<ReadyNode>,
    local: &mut ThreadState<FramedFlow>,
) {
    match next {
        Some(ready) => run.make_ready(ready.task(iteration), local),
        None => release_hold(run, iteration, local),
    }
}

/// Releases a hold on an iteration. The last release closes the iteration, which may end its frame and in turn
/// iterations that enclose the frame.
fn release_hold(run: &Arc<Run<FramedFlow>>, iteration: Arc<Iteration>, local: &mut ThreadState<FramedFlow>) {
    let mut held = Some(iteration);
    while let Some(iteration) = held.take() {
        if iteration.release() {
            let frame = iteration.frame.clone();
            drop(iteration);
            held = close_iterations(run, &frame, local);
        }
    }
}

/// Closes the iterations of a loop that are over, and starts the next iteration if it was waiting until fewer
/// iterations are open. If the loop is then over, returns the enclosing iteration, on which the caller must release the
/// loop's hold.
fn close_iterations(
    run: &Arc<Run<FramedFlow>>,
    frame: &Arc<LoopFrame>,
    local: &mut ThreadState<FramedFlow>,
) -> Option<Arc<Iteration>> {
    let parent = frame.parent.as_ref()?;
    let plan = &run.executor.plan.frames;
    let info = &plan.frames[frame.index as usize];
    loop {
        let mut ended = SmallVec::new();
        let mut next_iteration = None;
        let mut dead_exits = None;
        {
            let iterations = &mut *frame.iterations.lock();
            if iterations.enters_left == 0 {
                ended = iterations.close_first();
            }
            if !iterations.waiting.is_empty() && iterations.open.len() < info.max_open {
                next_iteration = Some((iterations.advance(frame, plan), iterations.inputs()));
            } else if iterations.open.is_empty() && !iterations.is_over {
                iterations.is_over = true;
                dead_exits = Some(std::mem::take(&mut iterations.dead_exits));
                ended.append(&mut iterations.spare);
            }
        }
        for iteration in ended {
            // If another thread still has a reference to the iteration, the state is dropped with that reference
            // instead of being reused.
            if let Ok(iteration) = Arc::try_unwrap(iteration) {
                iteration.state.store(info);
            }
        }
        if let Some((iteration, inputs)) = next_iteration {
            let mut next = None;
            deliver_inputs(run, &iteration, inputs, &mut next, local);
            match next {
                Some(ready) => {
                    run.make_ready(ready.task(iteration), local);
                    return None;
                }
                None if iteration.release() => continue,
                None => return None,
            }
        }
        let dead_exits = dead_exits?;
        parent.children.lock().retain(|child| !Arc::ptr_eq(child, frame));
        let mut next = None;
        for node in dead_exits {
            deliver_outputs(run, parent, node, true, &mut next, local);
        }
        return match next {
            Some(ready) => {
                run.make_ready(ready.task(parent.clone()), local);
                None
            }
            None => Some(parent.clone()),
        };
    }
}

/// Delivers the inputs of an iteration. An input without a value is the output of a dead node.
fn deliver_inputs(
    run: &Arc<Run<FramedFlow>>,
    iteration: &Arc<Iteration>,
    inputs: IterationInputs,
    next: &mut Option<ReadyNode>,
    local: &mut ThreadState<FramedFlow>,
) {
    for (node, value) in inputs {
        let is_dead = matches!(value, Value::None);
        local.outputs.clear();
        local.outputs.push(value);
        deliver_outputs(run, iteration, node, is_dead, next, local);
    }
}

/// Delivers a value that enters a loop: to the first iteration, or, if the Enter is constant, to every iteration.
fn deliver_enter(
    run: &Arc<Run<FramedFlow>>,
    frame: &Arc<LoopFrame>,
    node: u32,
    is_dead: bool,
    is_constant: bool,
    local: &mut ThreadState<FramedFlow>,
) {
    let value = if is_dead { Value::None } else { std::mem::take(&mut local.single_output()[0]) };
    let targets: SmallVec<[Arc<Iteration>; 4]> = {
        let iterations = &mut *frame.iterations.lock();
        // The first iteration stays open until all Enters have run.
        let count = if is_constant { iterations.open.len() } else { 1 };
        if is_constant {
            iterations.constants.push((node, value.clone()));
        }
        iterations.open.iter().take(count).inspect(|iteration| iteration.hold()).cloned().collect()
    };
    for iteration in targets {
        let mut next = None;
        deliver_inputs(run, &iteration, smallvec![(node, value.clone())], &mut next, local);
        pass_hold_on(run, iteration, next, local);
    }
    let all_have_entered = {
        let mut iterations = frame.iterations.lock();
        iterations.enters_left -= 1;
        iterations.enters_left == 0
    };
    if all_have_entered && let Some(parent) = close_iterations(run, frame, local) {
        release_hold(run, parent, local);
    }
}

/// Delivers a value that leaves a loop. A dead Exit matters only in the last iteration.
fn deliver_exit(
    run: &Arc<Run<FramedFlow>>,
    iteration: Arc<Iteration>,
    node: u32,
    is_dead: bool,
    local: &mut ThreadState<FramedFlow>,
) {
    let frame = &iteration.frame;
    if is_dead {
        let mut iterations = frame.iterations.lock();
        if iteration.number == iterations.newest {
            iterations.dead_exits.push(node);
        }
    } else if let Some(parent) = &frame.parent {
        parent.hold();
        let mut next = None;
        deliver_outputs(run, parent, node, false, &mut next, local);
        pass_hold_on(run, parent.clone(), next, local);
    }
    release_hold(run, iteration, local);
}

/// Delivers the value of a NextIteration to the next iteration, which is opened by its first value if the loop allows
/// another open iteration. Dead tensors are dropped, so that a loop ends when no value opens another iteration.
fn deliver_next_iteration(
    run: &Arc<Run<FramedFlow>>,
    iteration: Arc<Iteration>,
    node: u32,
    is_dead: bool,
    local: &mut ThreadState<FramedFlow>,
) {
    if !is_dead {
        let plan = &run.executor.plan.frames;
        let frame = &iteration.frame;
        let max_open = plan.frames[frame.index as usize].max_open;
        let value = std::mem::take(&mut local.single_output()[0]);
        let target = {
            let iterations = &mut *frame.iterations.lock();
            let first = iterations.open.front().map_or(0, |iteration| iteration.number);
            if iteration.number < iterations.newest {
                let iteration = iterations.open.get((iteration.number + 1 - first) as usize).cloned();
                iteration
                    .inspect(|iteration| iteration.hold())
                    .map(|iteration| (iteration, smallvec![(node, value)]))
            } else {
                iterations.waiting.push((node, value));
                (iterations.open.len() < max_open)
                    .then(|| (iterations.advance(frame, plan), iterations.inputs()))
            }
        };
        if let Some((iteration, inputs)) = target {
            let mut next = None;
            deliver_inputs(run, &iteration, inputs, &mut next, local);
            pass_hold_on(run, iteration, next, local);
        }
    }
    release_hold(run, iteration, local);
}
