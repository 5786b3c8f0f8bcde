//! One run of a partition: the choice of the next node and its thread, and the end of the run.

use super::action::Action;
use super::flow::Flow;
use super::plan::PlanNode;
use super::trace::{Recorder, Trace};
use crate::executor::{EXPENSIVE_NANOS, Executor, NODE_OVERHEAD_NANOS};
use device::cancel::Registration;
use device::kernel::Step;
use device::value::Value;
use device::{Error, Result};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

type Done = Box<dyn FnOnce(Result<Trace>) + Send>;

/// One execution of a partition, in a step.
pub(super) struct Run<F: Flow> {
    pub(super) executor: Arc<Executor>,
    pub(super) step: Arc<Step>,
    pub(super) flow: F,
    /// The number of threads that work on the run or are about to, and of operations that will call back. The run ends
    /// at zero.
    pub(super) outstanding: AtomicUsize,
    /// The error to report: the first error, unless it is a consequence of another failure and the cause is recorded
    /// later.
    error: Mutex<Option<Error>>,
    pub(super) recorder: Option<Recorder>,
    pub(super) measures: bool,
    completion: Mutex<Completion>,
}

/// The registration with the step's cancellation, and the callback for the result. Both are taken out when the run
/// ends.
struct Completion {
    registration: Option<Registration>,
    done: Option<Done>,
}

/// The state of one thread that works on a run.
pub(super) struct ThreadState<F: Flow> {
    /// The nodes that this thread made ready; the last one runs first.
    pub(super) ready: Vec<F::Task>,
    /// The total expected duration in ns of the ready nodes that are worth sharing with another thread.
    backlog: u64,
    /// An expensive node, which runs when this thread has no other ready node. The node is handed to another thread if
    /// `MAX_POSTPONED_FOR` cheap nodes have run before.
    postponed: Option<F::Task>,
    /// The number of cheap nodes that may still run before the postponed node is handed over.
    postponed_for: u32,
    /// The node that is running.
    pub(super) current: u32,
    /// True if no other thread works on the run.
    pub(super) alone: bool,
    /// The outputs of the running kernel; empty between nodes.
    pub(super) outputs: SmallVec<[Value; 4]>,
    /// Continuations of receives that another thread is to run; `None` unless this thread only starts the run's
    /// receives.
    pub(super) continuations: Option<Vec<Continuation<F>>>,
    /// The time in ns that further nodes may take on this thread before the ready nodes are handed to another thread;
    /// `None` for no limit.
    pub(super) allowance: Option<u64>,
}

/// The work of a run that follows a completed operation.
pub(super) type Continuation<F> = Box<dyn FnOnce(&Arc<Run<F>>, &mut ThreadState<F>) + Send>;

/// The number of cheap nodes that take about as long as handing a node to another thread.
const MAX_POSTPONED_FOR: u32 = 64;

/// The minimum backlog in ns at which ready nodes are shared with an idle thread.
const MIN_SHARED_BACKLOG: u64 = 30_000;

/// The maximum size in bytes of each input of a kernel that has not been measured and counts as fast.
const SMALL_INPUT_BYTES: usize = 4 << 10;

/// The number of nodes after which a run with loops checks whether other work waits for its thread.
const YIELD_INTERVAL: u32 = 1024;

impl<F: Flow> Run<F> {
    pub(super) fn new(
        executor: &Arc<Executor>,
        step: Arc<Step>,
        trace: bool,
        measures: bool,
        done: Done,
    ) -> Arc<Run<F>> {
        // A cancellation aborts the rendezvous, which ends the receives. If the step is already cancelled, no callback
        // is needed, because no node will run.
        let registration = if executor.plan.num_receives > 0 {
            let rendezvous = step.rendezvous.clone();
            step.cancellation.register(move |reason| rendezvous.abort(reason.clone().derived())).ok()
        } else {
            None
        };
        Arc::new(Run {
            flow: F::new(executor),
            recorder: trace.then(|| Recorder::new(&executor.plan, step.activity.clone())),
            executor: executor.clone(),
            step,
            outstanding: AtomicUsize::new(1),
            error: Mutex::new(None),
            measures: measures || trace,
            completion: Mutex::new(Completion { registration, done: Some(done) }),
        })
    }

    pub(super) fn start(self: Arc<Run<F>>) {
        self.work(|run, local| {
            let sources = &run.executor.plan.sources;
            local.alone = run.is_alone();
            sources.iter().for_each(|&id| run.make_ready(run.flow.source(id), local));
        });
    }

    /// Starts a run that begins with receives: the calling thread starts them, and values that are available at once
    /// are handled on another thread.
    pub(super) fn start_receives(self: Arc<Run<F>>) {
        self.work(|run, local| {
            local.continuations = Some(Vec::new());
            for &id in &run.executor.plan.sources {
                if let Some(recorder) = &run.recorder {
                    recorder.scheduled(id);
                }
                run.run_node(run.flow.source(id), local);
            }
            run.yield_to_others(local);
            let continuations = local.continuations.take().unwrap_or_default();
            if !continuations.is_empty() {
                run.continue_elsewhere(local, |run, local| {
                    continuations.into_iter().for_each(|continuation| continuation(run, local))
                });
            }
        });
    }

    /// Calls `begin` and then runs nodes on this thread until none is ready. The caller has counted the thread in
    /// `outstanding`.
    pub(super) fn work(self: Arc<Run<F>>, begin: impl FnOnce(&Arc<Run<F>>, &mut ThreadState<F>)) {
        let mut local = ThreadState::new();
        let worked = catch_unwind(AssertUnwindSafe(|| {
            begin(&self, &mut local);
            self.drive(&mut local);
            self.step.rendezvous.flush();
        }));
        if let Err(payload) = worked {
            let node = &self.executor.plan.nodes[local.current as usize].node;
            self.fail(local.current, Error::panicked(node, payload.as_ref()));
        }
        local.ready.clear();
        F::store_queue(std::mem::take(&mut local.ready));
        drop(local);
        if self.outstanding.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish();
        }
    }

    fn drive(self: &Arc<Run<F>>, local: &mut ThreadState<F>) {
        let mut until_yield = YIELD_INTERVAL;
        loop {
            if F::MAY_LOOP {
                until_yield -= 1;
                if until_yield == 0 {
                    until_yield = YIELD_INTERVAL;
                    if self.executor.pool.has_waiting() {
                        return self.yield_to_others(local);
                    }
                }
            }
            if local.backlog >= MIN_SHARED_BACKLOG && self.executor.pool.has_idle() {
                self.share(local);
            }
            let task = match local.ready.pop() {
                Some(task) => {
                    let cost = self.executor.cost(F::node(&task));
                    local.backlog = local.backlog.saturating_sub(cost.into());
                    task
                }
                None => match local.postponed.take() {
                    Some(task) => task,
                    None => return,
                },
            };
            if self.step.cancellation.is_cancelled() {
                if let Err(reason) = self.step.cancellation.check() {
                    self.record(reason);
                }
                return;
            }
            if local.postponed.is_some() {
                local.postponed_for -= 1;
                if local.postponed_for == 0
                    && let Some(postponed) = local.postponed.take()
                {
                    self.hand_over([postponed], local);
                }
            }
            if local.allowance.is_some() && !self.try_spend_allowance(&task, local) {
                local.ready.push(task);
                return self.yield_to_others(local);
            }
            if self.executor.is_expensive(F::node(&task)) {
                self.step.rendezvous.flush();
            }
            self.run_node(task, local);
        }
    }

    /// Deducts a node's expected duration from the thread's allowance. Returns whether the allowance was sufficient;
    /// for a kernel that has not been measured, the inputs must also be small.
    fn try_spend_allowance(&self, task: &F::Task, local: &mut ThreadState<F>) -> bool {
        let Some(allowance) = &mut local.allowance else { return true };
        let plan = &self.executor.plan;
        let planned = &plan.nodes[F::node(task) as usize];
        let cost = self.executor.costs[F::node(task) as usize].load(Ordering::Relaxed);
        let is_small = |input: &Value| match input {
            Value::Host(tensor) => tensor.num_bytes() <= SMALL_INPUT_BYTES,
            Value::None => true,
            Value::Device(_) | Value::Ref(_) | Value::View(_) => false,
        };
        if cost == 0
            && let Action::Kernel(_) = planned.action
            // SAFETY: this thread owns the task, whose producers have all decremented its count.
            && !unsafe { self.flow.inputs(task, plan.slots(planned)) }.iter().all(is_small)
        {
            return false;
        }
        match allowance.checked_sub(NODE_OVERHEAD_NANOS + u64::from(cost)) {
            Some(rest) => *allowance = rest,
            None => return false,
        }
        true
    }

    pub(super) fn is_alone(&self) -> bool {
        // Acquire makes the writes of the threads that have left visible.
        self.outstanding.load(Ordering::Acquire) == 1
    }

    pub(super) fn make_ready(self: &Arc<Run<F>>, task: F::Task, local: &mut ThreadState<F>) {
        let id = F::node(&task);
        if let Some(recorder) = &self.recorder {
            recorder.scheduled(id);
        }
        let cost = self.executor.cost(id);
        if cost < EXPENSIVE_NANOS {
            local.ready.push(task);
            local.backlog += u64::from(cost);
        } else if local.postponed.is_none() {
            local.postponed = Some(task);
            local.postponed_for = MAX_POSTPONED_FOR;
        } else {
            self.hand_over([task], local);
        }
    }

    /// Hands the older half of the ready nodes to another thread, which may pass half of them on in turn.
    fn share(self: &Arc<Run<F>>, local: &mut ThreadState<F>) {
        let half = local.ready.len() / 2;
        local.backlog /= 2;
        if half > 0 {
            let older: Vec<F::Task> = local.ready.drain(..half).collect();
            self.hand_over(older, local);
        }
    }

    /// Yields the thread to other steps by handing all ready nodes to the pool.
    #[cold]
    fn yield_to_others(self: &Arc<Run<F>>, local: &mut ThreadState<F>) {
        let mut rest: Vec<F::Task> = local.postponed.take().into_iter().collect();
        rest.append(&mut local.ready);
        if !rest.is_empty() {
            self.hand_over(rest, local);
        }
    }

    /// Hands ready nodes to another thread.
    fn hand_over(
        self: &Arc<Run<F>>,
        tasks: impl IntoIterator<Item = F::Task> + Send + 'static,
        local: &mut ThreadState<F>,
    ) {
        self.continue_elsewhere(local, |run, local| {
            for task in tasks {
                local.backlog += u64::from(run.executor.cost(F::node(&task)));
                local.ready.push(task);
            }
        });
    }

    /// Makes a pool thread work on the run, starting with `begin`.
    fn continue_elsewhere(
        self: &Arc<Run<F>>,
        local: &mut ThreadState<F>,
        begin: impl FnOnce(&Arc<Run<F>>, &mut ThreadState<F>) + Send + 'static,
    ) {
        local.alone = false;
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        let run = self.clone();
        self.executor.pool.spawn(move || run.work(begin));
    }

    /// Fails the step with an error of this node; nodes that have not started do not run.
    pub(super) fn fail(&self, id: u32, error: Error) {
        let error = error.at_node(&self.executor.plan.nodes[id as usize].node.name);
        let error = if self.step.cancellation.is_cancelled() { error.derived() } else { error };
        self.record(error.clone());
        self.step.cancellation.cancel(error.clone());
        self.step.rendezvous.abort(error.derived());
    }

    fn record(&self, error: Error) {
        let mut first = self.error.lock();
        match &*first {
            Some(known) if !known.is_derived() || error.is_derived() => {}
            _ => *first = Some(error),
        }
    }

    fn finish(self: Arc<Run<F>>) {
        let Completion { registration, done } =
            std::mem::replace(&mut *self.completion.lock(), Completion { registration: None, done: None });
        if let Some(registration) = registration {
            self.step.cancellation.deregister(registration);
        }
        if self.measures {
            self.executor.update_lightness();
        }
        let error = self.error.lock().take();
        let error = self.flow.end(&self.executor, error.is_some()).err().or(error);
        let result = match (error, &self.recorder) {
            (Some(error), _) => Err(error),
            (None, Some(recorder)) => Ok(recorder.take(&self.executor.plan)),
            (None, None) => Ok(Trace::default()),
        };
        drop(self);
        if let Some(done) = done {
            done(result);
        }
    }
}

impl<F: Flow> ThreadState<F> {
    fn new() -> ThreadState<F> {
        ThreadState {
            ready: F::take_queue(),
            backlog: 0,
            postponed: None,
            postponed_for: 0,
            current: 0,
            alone: false,
            outputs: SmallVec::new(),
            continuations: None,
            allowance: None,
        }
    }

    /// Records that another thread may work on the run from now on.
    pub(super) fn set_shared(&mut self) {
        self.alone = false;
    }

    pub(super) fn outputs_of(&mut self, planned: &PlanNode) -> &mut [Value] {
        self.outputs(planned.outputs as usize)
    }

    /// Returns the output of a node with one output.
    pub(super) fn single_output(&mut self) -> &mut [Value] {
        self.outputs(1)
    }

    fn outputs(&mut self, count: usize) -> &mut [Value] {
        if self.outputs.len() < count {
            self.outputs.resize_with(count, Value::default);
        }
        &mut self.outputs[..count]
    }
}
