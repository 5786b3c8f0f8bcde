//! Steps of partitions with control flow: nodes that are dead, and loops, whose nodes run once each turn.
//!
//! A *frame* is one execution of a loop, an *iteration* one turn of it, with a state of its own for the nodes
//! of the loop's body. What is in no loop is the only iteration of the outermost frame. An iteration counts who
//! may still make something ready in it; at zero, and once the turns before it are over, it is over too, and its
//! state goes to a later turn.

use super::action::Action;
use super::flow::Flow;
use super::frame_plan::{FrameInfo, FramePlan, Kind};
use super::run::{Local, Run};
use super::state::{Slots, empty};
use crate::executor::{Executor, KEPT_STATES};
use device::rendezvous::RendezvousKey;
use device::value::Value;
use device::{Error, Result};
use graph::fingerprint;
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// A step's outermost iteration.
pub(super) struct Framed {
    root: Arc<Iteration>,
}

/// A node that is ready in an iteration.
pub(super) struct Task {
    iteration: Arc<Iteration>,
    node: u32,
    is_dead: bool,
}

/// One turn.
pub(super) struct Iteration {
    frame: Arc<Frame>,
    number: u64,
    /// The numbers of the frame's nodes, first segment, and first slot.
    nodes: Range<usize>,
    first_segment: usize,
    first_slot: usize,
    /// Nodes ready or running, frames entered from here that are not over, and threads that are adding to it.
    holds: AtomicUsize,
    cells: Cells,
    /// Frames entered from here that are not over.
    children: Mutex<SmallVec<[Arc<Frame>; 1]>>,
}

/// One execution of a loop.
struct Frame {
    /// Its number in the plan.
    index: u32,
    /// What keys between tasks call it.
    id: u64,
    /// `None` of what is in no loop.
    parent: Option<Arc<Iteration>>,
    turns: Mutex<Turns>,
}

/// The turns of a loop.
struct Turns {
    /// Those under way, in order.
    open: VecDeque<Arc<Iteration>>,
    /// The number of the newest.
    newest: u64,
    /// What each turn gets: Enters that are constant, and their values, none if dead.
    constants: Arrivals,
    /// What waits for the next turn, which may not start yet.
    waiting: Arrivals,
    /// Enters that have not run.
    enters_left: usize,
    /// Exits of the newest turn that are dead: if it is the last one, what follows the loop is dead too.
    dead_exits: Vec<u32>,
    is_over: bool,
    /// Turns that are over and hold no values, to be used again.
    spare: SmallVec<[Arc<Iteration>; 2]>,
}

/// Nodes whose values go into a turn from before it, and the values; none where they are dead.
type Arrivals = SmallVec<[(u32, Value); 2]>;

/// A node that waits for nothing more, in an iteration that is at hand.
#[derive(Clone, Copy)]
struct Ready {
    node: u32,
    is_dead: bool,
}

impl Ready {
    fn task(self, iteration: Arc<Iteration>) -> Task {
        Task { iteration, node: self.node, is_dead: self.is_dead }
    }
}

/// What the nodes of a frame need in one turn: a count for each, and a value for each of their inputs.
pub(super) struct Cells {
    counts: Box<[AtomicU64]>,
    slots: Slots,
}

/// A count: what the node waits for; for a Merge also how many inputs are dead.
const WAITS: u64 = (1 << 31) - 1;
const ONE_DEAD_INPUT: u64 = 1 << 31;
const DEAD_INPUTS: u64 = (1 << 31) - 1;
/// The node will not run.
const DEAD: u64 = 1 << 62;
/// A Merge has its input, or will have none.
const DECIDED: u64 = 1 << 63;

/// State of at most so many turns is kept for each frame.
const KEPT: usize = 64;

impl Cells {
    fn new(info: &FrameInfo) -> Cells {
        Cells {
            counts: info.nodes.clone().chain(info.segments.clone()).map(|_| AtomicU64::new(0)).collect(),
            slots: Slots::new(info.slots.len()),
        }
    }

    /// State for a new turn.
    fn take(plan: &FramePlan, info: &FrameInfo) -> Cells {
        let kept = info.idle.lock().pop();
        let cells = kept.unwrap_or_else(|| Cells::new(info));
        cells.reset(plan, info);
        cells
    }

    /// Sets the counts for a new turn. Nobody may be using the cells.
    fn reset(&self, plan: &FramePlan, info: &FrameInfo) {
        let starts = plan.counts[info.nodes.clone()].iter().chain(&plan.counts[info.segments.clone()]);
        for (count, &start) in self.counts.iter().zip(starts) {
            count.store(start, Ordering::Relaxed);
        }
    }

    fn keep(self, info: &FrameInfo) {
        // SAFETY: the caller owns the cells.
        unsafe { self.slots.clear() };
        let mut idle = info.idle.lock();
        if idle.len() < KEPT {
            idle.push(self);
        }
    }

    /// Adds to a count, modulo 2^64; returns what it was. `alone`: no other thread works on the step.
    fn add(&self, node: usize, by: u64, alone: bool) -> u64 {
        let count = &self.counts[node];
        if alone {
            let before = count.load(Ordering::Relaxed);
            count.store(before.wrapping_add(by), Ordering::Relaxed);
            before
        } else {
            // Release: what this thread wrote into slots. Acquire: what the others did.
            count.fetch_add(by, Ordering::AcqRel)
        }
    }

    /// Sets a flag; returns the count as it was.
    fn set(&self, node: usize, flag: u64, alone: bool) -> u64 {
        let count = &self.counts[node];
        if alone {
            let before = count.load(Ordering::Relaxed);
            count.store(before | flag, Ordering::Relaxed);
            before
        } else {
            count.fetch_or(flag, Ordering::AcqRel)
        }
    }

    /// Counts a node down; if it waits for nothing more, whether it is dead.
    fn count_down(&self, node: usize, alone: bool) -> Option<bool> {
        let before = self.add(node, u64::MAX, alone);
        (before & WAITS == 1).then_some(before & DEAD != 0)
    }
}

impl Iteration {
    /// A turn with one hold.
    fn new(plan: &FramePlan, frame: Arc<Frame>, number: u64) -> Iteration {
        let info = &plan.frames[frame.index as usize];
        Iteration {
            frame,
            number,
            nodes: info.nodes.clone(),
            first_segment: info.segments.start,
            first_slot: info.slots.start,
            holds: AtomicUsize::new(1),
            cells: Cells::take(plan, info),
            children: Mutex::default(),
        }
    }

    /// The iteration of a turn that is over, for a later one, with one hold. `None` if another thread is about to let
    /// go of it.
    fn again(mut self: Arc<Iteration>, plan: &FramePlan, number: u64) -> Option<Arc<Iteration>> {
        let turn = Arc::get_mut(&mut self)?;
        turn.number = number;
        *turn.holds.get_mut() = 1;
        turn.cells.reset(plan, &plan.frames[turn.frame.index as usize]);
        Some(self)
    }

    /// Where the count of a node or a segment of the frame is.
    fn cell(&self, unit: u32) -> usize {
        match (unit as usize).checked_sub(self.first_segment) {
            Some(segment) => self.nodes.len() + segment,
            None => unit as usize - self.nodes.start,
        }
    }

    fn hold(&self) {
        self.holds.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether that was the last hold.
    fn release(&self) -> bool {
        // Release: what this thread did in the iteration. Acquire: what the others did.
        self.holds.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The frame that an Enter leads to, which the first of its Enters opens.
    fn child(self: &Arc<Iteration>, plan: &FramePlan, index: u32) -> Arc<Frame> {
        let mut children = self.children.lock();
        if let Some(known) = children.iter().find(|frame| frame.index == index) {
            return known.clone();
        }
        let info = &plan.frames[index as usize];
        let id = fingerprint::combine(self.frame.id, fingerprint::combine(self.number, info.hash));
        let frame = Arc::new(Frame {
            index,
            id,
            parent: Some(self.clone()),
            turns: Mutex::new(Turns::new(info.enters)),
        });
        // The frame holds its parent until it is over; the first turn starts without a hold of its own, for it
        // is not over before all Enters have run.
        self.hold();
        let first = Iteration::new(plan, frame.clone(), 0);
        first.holds.store(0, Ordering::Relaxed);
        frame.turns.lock().open.push_back(Arc::new(first));
        children.push(frame.clone());
        frame
    }
}

impl Turns {
    fn new(enters: usize) -> Turns {
        Turns {
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

    /// What a turn that was just opened gets.
    fn arrivals(&mut self) -> Arrivals {
        let mut all = std::mem::take(&mut self.waiting);
        all.extend(self.constants.iter().cloned());
        all
    }

    /// Opens the next turn; the caller holds it.
    fn advance(&mut self, frame: &Arc<Frame>, plan: &FramePlan) -> Arc<Iteration> {
        self.newest += 1;
        self.dead_exits.clear();
        let again = self.spare.pop().and_then(|turn| turn.again(plan, self.newest));
        let turn = again.unwrap_or_else(|| Arc::new(Iteration::new(plan, frame.clone(), self.newest)));
        self.open.push_back(turn.clone());
        turn
    }

    /// Ends the first turns as far as they are over; returns those in which dead nodes have left values, to be dropped
    /// without the lock.
    fn close_first(&mut self) -> SmallVec<[Arc<Iteration>; 2]> {
        let mut littered = SmallVec::new();
        // Acquire: what was done in the turn, so that its state can be used anew.
        let is_over = |turn: &Arc<Iteration>| turn.holds.load(Ordering::Acquire) == 0;
        while self.open.front().is_some_and(is_over)
            && let Some(turn) = self.open.pop_front()
        {
            // SAFETY: nobody works in the turn any more.
            match unsafe { turn.cells.slots.are_empty() } {
                true => self.spare.push(turn),
                false => littered.push(turn),
            }
        }
        littered
    }
}

impl Flow for Framed {
    type Task = Task;

    const MAY_LOOP: bool = true;

    fn new(executor: &Executor) -> Framed {
        let plan = &executor.plan.frames;
        if let Some(root) = plan.roots.lock().pop() {
            root.cells.reset(plan, &plan.frames[0]);
            return Framed { root };
        }
        let turns = Mutex::new(Turns::new(0));
        let frame = Arc::new(Frame { index: 0, id: 0, parent: None, turns });
        Framed { root: Arc::new(Iteration::new(plan, frame, 0)) }
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
        // SAFETY: as the caller promises.
        unsafe { task.iteration.cells.slots.inputs(slots.start - first..slots.end - first) }
    }

    fn key(task: &Task, key: &Arc<RendezvousKey>) -> Arc<RendezvousKey> {
        match &*task.iteration {
            Iteration { frame, .. } if frame.parent.is_none() => key.clone(),
            Iteration { frame, number, .. } => Arc::new(key.in_frame(frame.id, *number)),
        }
    }

    fn deliver(run: &Arc<Run<Framed>>, task: Task, started: Option<Instant>, local: &mut Local<Framed>) {
        let executor = &run.executor;
        if let (Some(recorder), Some(started)) = (&run.recorder, started) {
            recorder.ran(&executor.plan, task.node, started, &local.outputs);
        }
        let Task { iteration, node, is_dead } = task;
        local.alone = run.is_alone();
        let planned = &executor.plan.nodes[node as usize];
        if !is_dead
            && matches!(planned.action, Action::Kernel(_))
            && let Some(edge) = executor.plan.edges(planned).iter().find(|e| is_missing(e.output, local))
        {
            return run.fail(node, executor.plan.missing(node, edge.output));
        }
        match executor.plan.frames.kinds[node as usize] {
            Kind::Plain | Kind::Merge(_) => {
                let mut next = None;
                spread(run, &iteration, node, is_dead, &mut next, local);
                settle(run, iteration, next, local);
            }
            Kind::Enter { frame, is_constant } => {
                let frame = iteration.child(&executor.plan.frames, frame);
                enter(run, &frame, node, is_dead, is_constant, local);
                let_go(run, iteration, local);
            }
            Kind::Exit => exit(run, iteration, node, is_dead, local),
            Kind::NextIteration => next_turn(run, iteration, node, is_dead, local),
        }
    }

    /// What waits for a receive by control only is not dead with it.
    fn deliver_dead(run: &Arc<Run<Framed>>, task: Task, local: &mut Local<Framed>) {
        let Task { iteration, node, is_dead } = task;
        local.alone = run.is_alone();
        let mut next = None;
        spread(run, &iteration, node, is_dead, &mut next, local);
        settle(run, iteration, next, local);
    }

    fn end(&self, executor: &Executor, has_failed: bool) -> Result<()> {
        let plan = &executor.plan.frames;
        let mut open: Vec<Arc<Frame>> = self.root.children.lock().drain(..).collect();
        let stuck = open.first().map(|frame| {
            let info = &plan.frames[frame.index as usize];
            let left = frame.turns.lock().enters_left;
            Error::internal(format!("the loop '{}' did not end: {left} of its Enters never ran", info.name))
        });
        // Frames and iterations hold each other; inner ones end before those that they are in.
        let mut all = Vec::new();
        while let Some(frame) = open.pop() {
            {
                let turns = &mut *frame.turns.lock();
                turns.spare.clear();
                for iteration in turns.open.drain(..) {
                    open.extend(iteration.children.lock().drain(..));
                }
            }
            all.push(frame);
        }
        while all.pop().is_some() {}
        // SAFETY: nothing is outstanding, so nobody uses the state, nor will.
        unsafe { self.root.cells.slots.clear() };
        self.root.holds.store(1, Ordering::Relaxed);
        let mut roots = plan.roots.lock();
        if roots.len() < KEPT_STATES {
            roots.push(self.root.clone());
        }
        match stuck {
            Some(stuck) if !has_failed => Err(stuck),
            _ => Ok(()),
        }
    }
}

fn is_missing(output: u32, local: &Local<Framed>) -> bool {
    matches!(local.outputs.get(output as usize), None | Some(Value::None))
}

/// Gives what a node left in `local.outputs` to its consumers in `to`, which the caller holds. Of those that
/// wait for nothing more all but one are made ready; that one goes to `next`, to take over the caller's hold.
/// Where there is no value the consumer is dead; where `is_dead`, so are those that wait by control.
fn spread(
    run: &Arc<Run<Framed>>,
    to: &Arc<Iteration>,
    node: u32,
    is_dead: bool,
    next: &mut Option<Ready>,
    local: &mut Local<Framed>,
) {
    let plan = &run.executor.plan;
    let planned = &plan.nodes[node as usize];
    let mut ready = |node: u32, is_dead: bool, local: &mut Local<Framed>| {
        let is_dead = is_dead && !matches!(plan.nodes[node as usize].action, Action::Nothing);
        if let Some(before) = next.replace(Ready { node, is_dead }) {
            to.hold();
            run.make_ready(before.task(to.clone()), local);
        }
    };
    let mut some_dead = is_dead;
    for (edge, target) in plan.edges(planned).iter().zip(plan.frames.targets(plan.edge_range(planned))) {
        let output =
            local.outputs.get_mut(edge.output as usize).filter(|output| !matches!(output, Value::None));
        let (cell, slot) = (to.cell(target.node), edge.slot as usize - to.first_slot);
        if !target.is_merge {
            match output {
                // SAFETY: this thread runs the producer, and counts down the consumer only below.
                Some(output) => unsafe { to.cells.slots.give(slot, output, edge.is_last) },
                None => {
                    some_dead = true;
                    to.cells.set(cell, DEAD, local.alone);
                }
            }
            continue;
        }
        if let Some(output) = output {
            if to.cells.set(cell, DECIDED, local.alone) & DECIDED != 0 {
                continue;
            }
            // SAFETY: this thread alone has decided which input the Merge takes, and counts it down only below.
            unsafe { to.cells.slots.give(slot, output, edge.is_last) };
        } else {
            let before = to.cells.add(cell, ONE_DEAD_INPUT, local.alone);
            let dead = ((before >> 31) & DEAD_INPUTS) as u32 + 1;
            let kinds = &plan.frames.kinds;
            // The way into a loop that is not entered: the way back will not be taken either.
            let is_entry = matches!(kinds[node as usize], Kind::Enter { .. });
            if kinds[target.node as usize] != Kind::Merge(dead) && !is_entry {
                continue;
            }
            if to.cells.set(cell, DECIDED, local.alone) & DECIDED != 0 {
                continue;
            }
            to.cells.set(cell, DEAD, local.alone);
        }
        if let Some(is_dead) = to.cells.count_down(cell, local.alone) {
            ready(target.node, is_dead, local);
        }
    }
    empty(&mut local.outputs);
    for successor in plan.successors(planned) {
        let waiting = successor.node();
        let cell = to.cell(waiting);
        if !some_dead && successor.waits_for_one() {
            ready(waiting, false, local);
            continue;
        }
        if is_dead && !matches!(plan.frames.kinds[waiting as usize], Kind::Merge(_)) {
            to.cells.set(cell, DEAD, local.alone);
        }
        if let Some(is_dead) = to.cells.count_down(cell, local.alone) {
            ready(waiting, is_dead, local);
        }
    }
}

/// Ends a hold on an iteration, or hands it over to a node that is ready in it.
fn settle(run: &Arc<Run<Framed>>, iteration: Arc<Iteration>, next: Option<Ready>, local: &mut Local<Framed>) {
    match next {
        Some(ready) => run.make_ready(ready.task(iteration), local),
        None => let_go(run, iteration, local),
    }
}

/// Ends a hold on an iteration, and whatever that lets end: the turn, the loop, the turn that it is in.
fn let_go(run: &Arc<Run<Framed>>, iteration: Arc<Iteration>, local: &mut Local<Framed>) {
    let mut held = Some(iteration);
    while let Some(iteration) = held.take() {
        if iteration.release() {
            let frame = iteration.frame.clone();
            drop(iteration);
            held = wind_up(run, &frame, local);
        }
    }
}

/// Ends the turns of a loop that are over, and starts the next if it waits for that. Once the loop is over,
/// returns the iteration that it is in, whose hold is the caller's then.
fn wind_up(run: &Arc<Run<Framed>>, frame: &Arc<Frame>, local: &mut Local<Framed>) -> Option<Arc<Iteration>> {
    let parent = frame.parent.as_ref()?;
    let plan = &run.executor.plan.frames;
    let info = &plan.frames[frame.index as usize];
    loop {
        let mut ended = SmallVec::new();
        let mut next_turn = None;
        let mut dead_exits = None;
        {
            let turns = &mut *frame.turns.lock();
            if turns.enters_left == 0 {
                ended = turns.close_first();
            }
            if !turns.waiting.is_empty() && turns.open.len() < info.parallel {
                next_turn = Some((turns.advance(frame, plan), turns.arrivals()));
            } else if turns.open.is_empty() && !turns.is_over {
                turns.is_over = true;
                dead_exits = Some(std::mem::take(&mut turns.dead_exits));
                ended.append(&mut turns.spare);
            }
        }
        for turn in ended {
            // Another thread may be about to let go of it; then its state is not used again.
            if let Ok(turn) = Arc::try_unwrap(turn) {
                turn.cells.keep(info);
            }
        }
        if let Some((turn, arrivals)) = next_turn {
            let mut next = None;
            arrive(run, &turn, arrivals, &mut next, local);
            match next {
                Some(ready) => {
                    run.make_ready(ready.task(turn), local);
                    return None;
                }
                None if turn.release() => continue,
                None => return None,
            }
        }
        let dead_exits = dead_exits?;
        parent.children.lock().retain(|child| !Arc::ptr_eq(child, frame));
        let mut next = None;
        for node in dead_exits {
            spread(run, parent, node, true, &mut next, local);
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

/// Gives a turn what comes from before it: values, or none from what is dead.
fn arrive(
    run: &Arc<Run<Framed>>,
    turn: &Arc<Iteration>,
    arrivals: Arrivals,
    next: &mut Option<Ready>,
    local: &mut Local<Framed>,
) {
    for (node, value) in arrivals {
        let is_dead = matches!(value, Value::None);
        local.outputs.clear();
        local.outputs.push(value);
        spread(run, turn, node, is_dead, next, local);
    }
}

/// Takes a value into a loop: to its first turn, or, of what is constant, to every one.
fn enter(
    run: &Arc<Run<Framed>>,
    frame: &Arc<Frame>,
    node: u32,
    is_dead: bool,
    is_constant: bool,
    local: &mut Local<Framed>,
) {
    let value = if is_dead { Value::None } else { std::mem::take(&mut local.outputs_of_one()[0]) };
    let targets: SmallVec<[Arc<Iteration>; 4]> = {
        let turns = &mut *frame.turns.lock();
        // The first turn is there as long as not all have entered.
        let count = if is_constant { turns.open.len() } else { 1 };
        if is_constant {
            turns.constants.push((node, value.clone()));
        }
        turns.open.iter().take(count).inspect(|turn| turn.hold()).cloned().collect()
    };
    for turn in targets {
        let mut next = None;
        arrive(run, &turn, smallvec![(node, value.clone())], &mut next, local);
        settle(run, turn, next, local);
    }
    let all_have_entered = {
        let mut turns = frame.turns.lock();
        turns.enters_left -= 1;
        turns.enters_left == 0
    };
    if all_have_entered && let Some(parent) = wind_up(run, frame, local) {
        let_go(run, parent, local);
    }
}

/// Takes a value out of a loop. That an Exit is dead means something only in the last turn.
fn exit(
    run: &Arc<Run<Framed>>,
    iteration: Arc<Iteration>,
    node: u32,
    is_dead: bool,
    local: &mut Local<Framed>,
) {
    let frame = &iteration.frame;
    if is_dead {
        let mut turns = frame.turns.lock();
        if iteration.number == turns.newest {
            turns.dead_exits.push(node);
        }
    } else if let Some(parent) = &frame.parent {
        parent.hold();
        let mut next = None;
        spread(run, parent, node, false, &mut next, local);
        settle(run, parent.clone(), next, local);
    }
    let_go(run, iteration, local);
}

/// Takes a value to the next turn, which the first such value opens if the loop lets it. What is dead goes no
/// further: so loops end.
fn next_turn(
    run: &Arc<Run<Framed>>,
    iteration: Arc<Iteration>,
    node: u32,
    is_dead: bool,
    local: &mut Local<Framed>,
) {
    if !is_dead {
        let plan = &run.executor.plan.frames;
        let frame = &iteration.frame;
        let parallel = plan.frames[frame.index as usize].parallel;
        let value = std::mem::take(&mut local.outputs_of_one()[0]);
        let target = {
            let turns = &mut *frame.turns.lock();
            let first = turns.open.front().map_or(0, |turn| turn.number);
            if iteration.number < turns.newest {
                let turn = turns.open.get((iteration.number + 1 - first) as usize).cloned();
                turn.inspect(|turn| turn.hold()).map(|turn| (turn, smallvec![(node, value)]))
            } else {
                turns.waiting.push((node, value));
                (turns.open.len() < parallel).then(|| (turns.advance(frame, plan), turns.arrivals()))
            }
        };
        if let Some((turn, arrivals)) = target {
            let mut next = None;
            arrive(run, &turn, arrivals, &mut next, local);
            settle(run, turn, next, local);
        }
    }
    let_go(run, iteration, local);
}
