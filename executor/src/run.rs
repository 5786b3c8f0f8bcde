//! One step of a partition: which node runs next, on which thread, and how the step ends.

use super::action::Action;
use super::flow::Flow;
use super::plan::PlanNode;
use super::trace::{Recorder, Trace};
use crate::executor::{EXPENSIVE, Executor, NODE};
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

/// A step under way.
pub(super) struct Run<F: Flow> {
    pub(super) executor: Arc<Executor>,
    pub(super) step: Arc<Step>,
    pub(super) flow: F,
    /// Threads that work on the step, or are about to, and operations that will call back. At zero it ends.
    pub(super) outstanding: AtomicUsize,
    /// The failure to report: the first, but a cause rather than a consequence.
    error: Mutex<Option<Error>>,
    pub(super) recorder: Option<Recorder>,
    pub(super) measures: bool,
    end: Mutex<End>,
}

/// What the end of the step needs.
struct End {
    registration: Option<Registration>,
    done: Option<Done>,
}

/// One thread's share of a step: the nodes that it made ready, the last first.
pub(super) struct Local<F: Flow> {
    pub(super) ready: Vec<F::Task>,
    /// What the ready nodes that are worth sharing are expected to take, ns.
    backlog: u64,
    /// An expensive node, kept until there is nothing else to run here, or for as many cheap nodes as a
    /// hand-over costs.
    held: Option<F::Task>,
    patience: u32,
    /// The node that runs.
    pub(super) current: u32,
    /// No other thread works on the step.
    pub(super) alone: bool,
    /// Where kernels leave outputs; empty between nodes.
    pub(super) outputs: SmallVec<[Value; 4]>,
    /// While a step begins on a thread that it does not stay on: what others are to go on with.
    pub(super) left: Option<Vec<GoOn<F>>>,
    /// What may still run here before others go on, ns; `None` for no bound.
    pub(super) allowance: Option<u64>,
}

/// The rest of an operation that has ended.
pub(super) type GoOn<F> = Box<dyn FnOnce(&Arc<Run<F>>, &mut Local<F>) + Send>;

const PATIENCE: u32 = 64;

/// A backlog of this, ns, is shared with a thread that has nothing to do.
const SHARED_FROM: u64 = 30_000;

/// Kernels whose inputs are no larger, bytes, are taken for fast until they have been measured.
const SMALL: usize = 4 << 10;

/// A step that may loop looks after so many nodes whether other steps wait for its thread.
const TURN: u32 = 1024;

impl<F: Flow> Run<F> {
    pub(super) fn new(
        executor: &Arc<Executor>,
        step: Arc<Step>,
        trace: bool,
        measures: bool,
        done: Done,
    ) -> Arc<Run<F>> {
        // Receives end with the step, whoever cancels it. If that has been already, no node will run.
        let registration = if executor.plan.num_receives > 0 {
            let rendezvous = step.rendezvous.clone();
            step.cancellation.register(move |reason| rendezvous.abort(reason.clone().derived())).ok()
        } else {
            None
        };
        Arc::new(Run {
            flow: F::new(executor),
            recorder: trace.then(|| Recorder::new(&executor.plan)),
            executor: executor.clone(),
            step,
            outstanding: AtomicUsize::new(1),
            error: Mutex::new(None),
            measures: measures || trace,
            end: Mutex::new(End { registration, done: Some(done) }),
        })
    }

    pub(super) fn start(self: Arc<Run<F>>) {
        self.work(|run, local| {
            let sources = &run.executor.plan.sources;
            local.alone = run.is_alone();
            sources.iter().for_each(|&id| run.make_ready(run.flow.source(id), local));
        });
    }

    /// As [`Run::start`], of a step that begins with receives: they wait from now on. What can go on at once does so
    /// on another thread.
    pub(super) fn start_receives(self: Arc<Run<F>>) {
        self.work(|run, local| {
            local.left = Some(Vec::new());
            for &id in &run.executor.plan.sources {
                if let Some(recorder) = &run.recorder {
                    recorder.scheduled(id);
                }
                run.run_node(run.flow.source(id), local);
            }
            run.give_way(local);
            let left = local.left.take().unwrap_or_default();
            if !left.is_empty() {
                run.go_on_elsewhere(local, |run, local| left.into_iter().for_each(|go_on| go_on(run, local)));
            }
        });
    }

    /// Works on the step until nothing is left for this thread. The caller has counted it as outstanding.
    pub(super) fn work(self: Arc<Run<F>>, begin: impl FnOnce(&Arc<Run<F>>, &mut Local<F>)) {
        let mut local = Local::new();
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
        F::keep_queue(std::mem::take(&mut local.ready));
        drop(local);
        if self.outstanding.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish();
        }
    }

    fn drive(self: &Arc<Run<F>>, local: &mut Local<F>) {
        let mut turn = TURN;
        loop {
            if F::MAY_LOOP {
                turn -= 1;
                if turn == 0 {
                    turn = TURN;
                    if self.executor.pool.has_waiting() {
                        return self.give_way(local);
                    }
                }
            }
            if local.backlog >= SHARED_FROM && self.executor.pool.has_idle() {
                self.share(local);
            }
            let task = match local.ready.pop() {
                Some(task) => {
                    let cost = self.executor.cost(F::node(&task));
                    local.backlog = local.backlog.saturating_sub(cost.into());
                    task
                }
                None => match local.held.take() {
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
            if local.held.is_some() {
                local.patience -= 1;
                if local.patience == 0
                    && let Some(held) = local.held.take()
                {
                    self.hand_over([held], local);
                }
            }
            if local.allowance.is_some() && !self.allows(&task, local) {
                local.ready.push(task);
                return self.give_way(local);
            }
            if self.executor.is_expensive(F::node(&task)) {
                self.step.rendezvous.flush();
            }
            self.run_node(task, local);
        }
    }

    /// Whether a node still goes into what may run here. What has not been measured yet does if its inputs are small.
    fn allows(&self, task: &F::Task, local: &mut Local<F>) -> bool {
        let Some(allowance) = &mut local.allowance else { return true };
        let plan = &self.executor.plan;
        let planned = &plan.nodes[F::node(task) as usize];
        let known = self.executor.costs[F::node(task) as usize].load(Ordering::Relaxed);
        let is_small = |input: &Value| match input {
            Value::Host(tensor) => tensor.num_bytes() <= SMALL,
            Value::None => true,
            Value::Device(_) | Value::Ref(_) | Value::View(_) => false,
        };
        if known == 0
            && let Action::Kernel(_) = planned.action
            // SAFETY: this thread has the task, whose producers have all counted it down.
            && !unsafe { self.flow.inputs(task, plan.slots(planned)) }.iter().all(is_small)
        {
            return false;
        }
        match allowance.checked_sub(NODE + u64::from(known)) {
            Some(left) => *allowance = left,
            None => return false,
        }
        true
    }

    pub(super) fn is_alone(&self) -> bool {
        // Acquire: what the threads that have left wrote.
        self.outstanding.load(Ordering::Acquire) == 1
    }

    pub(super) fn make_ready(self: &Arc<Run<F>>, task: F::Task, local: &mut Local<F>) {
        let id = F::node(&task);
        if let Some(recorder) = &self.recorder {
            recorder.scheduled(id);
        }
        let cost = self.executor.cost(id);
        if cost < EXPENSIVE {
            local.ready.push(task);
            local.backlog += u64::from(cost);
        } else if local.held.is_none() {
            local.held = Some(task);
            local.patience = PATIENCE;
        } else {
            self.hand_over([task], local);
        }
    }

    /// Gives the older half of what is ready to another thread, which may do so in turn.
    fn share(self: &Arc<Run<F>>, local: &mut Local<F>) {
        let half = local.ready.len() / 2;
        local.backlog /= 2;
        if half > 0 {
            let older: Vec<F::Task> = local.ready.drain(..half).collect();
            self.hand_over(older, local);
        }
    }

    /// Lets other steps have the thread, and goes on after them.
    #[cold]
    fn give_way(self: &Arc<Run<F>>, local: &mut Local<F>) {
        let mut rest: Vec<F::Task> = local.held.take().into_iter().collect();
        rest.append(&mut local.ready);
        if !rest.is_empty() {
            self.hand_over(rest, local);
        }
    }

    /// Gives nodes to another thread.
    fn hand_over(
        self: &Arc<Run<F>>,
        tasks: impl IntoIterator<Item = F::Task> + Send + 'static,
        local: &mut Local<F>,
    ) {
        self.go_on_elsewhere(local, |run, local| {
            for task in tasks {
                local.backlog += u64::from(run.executor.cost(F::node(&task)));
                local.ready.push(task);
            }
        });
    }

    /// Lets another thread work on the step.
    fn go_on_elsewhere(
        self: &Arc<Run<F>>,
        local: &mut Local<F>,
        begin: impl FnOnce(&Arc<Run<F>>, &mut Local<F>) + Send + 'static,
    ) {
        local.alone = false;
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        let run = self.clone();
        self.executor.pool.spawn(move || run.work(begin));
    }

    /// Ends the step with a failure of this node: nodes that have not started will not.
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
        let End { registration, done } =
            std::mem::replace(&mut *self.end.lock(), End { registration: None, done: None });
        if let Some(registration) = registration {
            self.step.cancellation.deregister(registration);
        }
        if self.measures {
            self.executor.weigh();
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

impl<F: Flow> Local<F> {
    fn new() -> Local<F> {
        Local {
            ready: F::take_queue(),
            backlog: 0,
            held: None,
            patience: 0,
            current: 0,
            alone: false,
            outputs: SmallVec::new(),
            left: None,
            allowance: None,
        }
    }

    /// Another thread may work on the step from now on.
    pub(super) fn joined(&mut self) {
        self.alone = false;
    }

    pub(super) fn outputs_of(&mut self, planned: &PlanNode) -> &mut [Value] {
        self.outputs(planned.outputs as usize)
    }

    /// The output of a node that has one.
    pub(super) fn outputs_of_one(&mut self) -> &mut [Value] {
        self.outputs(1)
    }

    fn outputs(&mut self, count: usize) -> &mut [Value] {
        if self.outputs.len() < count {
            self.outputs.resize_with(count, Value::default);
        }
        &mut self.outputs[..count]
    }
}
