//! One step of a partition: which node runs next, on which thread, and how the step ends.

use super::panicked;
use super::plan::PlanNode;
use super::state::State;
use super::trace::{Recorder, Trace};
use super::{EXPENSIVE, Executor};
use crate::cancel::Registration;
use crate::error::{Error, Result};
use crate::kernel::Step;
use crate::value::Value;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

type Done = Box<dyn FnOnce(Result<Trace>) + Send>;

/// A step under way.
pub(super) struct Run {
    pub(super) executor: Arc<Executor>,
    pub(super) step: Arc<Step>,
    pub(super) state: Arc<State>,
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
#[derive(Default)]
pub(super) struct Local {
    pub(super) ready: Vec<u32>,
    /// What the ready nodes that are worth sharing are expected to take, ns.
    backlog: u64,
    /// An expensive node, kept until there is nothing else to run here, or for as many cheap nodes as a
    /// hand-over costs.
    held: Option<u32>,
    patience: u32,
    /// The node that runs.
    pub(super) current: u32,
    /// No other thread works on the step.
    pub(super) alone: bool,
    /// Where kernels leave outputs; empty between nodes.
    pub(super) outputs: SmallVec<[Value; 4]>,
}

const PATIENCE: u32 = 64;

/// A backlog of this, ns, is shared with a thread that has nothing to do.
const SHARED_FROM: u64 = 30_000;

thread_local! {
    /// The memory of the last queue of this thread.
    static SPARE: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

impl Run {
    pub(super) fn new(
        executor: &Arc<Executor>,
        step: Arc<Step>,
        trace: bool,
        measures: bool,
        done: Done,
    ) -> Arc<Run> {
        // Receives end with the step, whoever cancels it. If that has been already, no node will run.
        let registration = if executor.plan.num_receives > 0 {
            let rendezvous = step.rendezvous.clone();
            step.cancellation.register(move |reason| rendezvous.abort(reason.clone().derived())).ok()
        } else {
            None
        };
        Arc::new(Run {
            state: executor.take_state(),
            recorder: trace.then(|| Recorder::new(&executor.plan)),
            executor: executor.clone(),
            step,
            outstanding: AtomicUsize::new(1),
            error: Mutex::new(None),
            measures: measures || trace,
            end: Mutex::new(End { registration, done: Some(done) }),
        })
    }

    pub(super) fn start(self: Arc<Run>) {
        self.work(|run, local| {
            let sources = &run.executor.plan.sources;
            local.alone = run.is_alone();
            sources.iter().for_each(|&id| run.make_ready(id, local));
        });
    }

    /// Works on the step until nothing is left for this thread. The caller has counted it as outstanding.
    pub(super) fn work(self: Arc<Run>, begin: impl FnOnce(&Arc<Run>, &mut Local)) {
        let mut local = Local { ready: SPARE.take(), ..Local::default() };
        let worked = catch_unwind(AssertUnwindSafe(|| {
            begin(&self, &mut local);
            self.drive(&mut local);
        }));
        if let Err(payload) = worked {
            let node = &self.executor.plan.nodes[local.current as usize].node;
            self.fail(local.current, panicked(node, payload.as_ref()));
        }
        local.ready.clear();
        SPARE.set(std::mem::take(&mut local.ready));
        drop(local);
        if self.outstanding.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish();
        }
    }

    fn drive(self: &Arc<Run>, local: &mut Local) {
        loop {
            if local.backlog >= SHARED_FROM && self.executor.pool.has_idle() {
                self.share(local);
            }
            let id = match local.ready.pop() {
                Some(id) => {
                    local.backlog = local.backlog.saturating_sub(self.executor.cost(id).into());
                    id
                }
                None => match local.held.take() {
                    Some(id) => id,
                    None => return,
                },
            };
            if self.step.cancellation.is_cancelled() {
                if let Err(reason) = self.step.cancellation.check() {
                    self.record(reason);
                }
                return;
            }
            if let Some(held) = local.held {
                local.patience -= 1;
                if local.patience == 0 {
                    local.held = None;
                    self.hand_over([held], local);
                }
            }
            self.run_node(id, local);
        }
    }

    pub(super) fn is_alone(&self) -> bool {
        // Acquire: what the threads that have left wrote.
        self.outstanding.load(Ordering::Acquire) == 1
    }

    pub(super) fn make_ready(self: &Arc<Run>, id: u32, local: &mut Local) {
        if let Some(recorder) = &self.recorder {
            recorder.scheduled(id);
        }
        let cost = self.executor.cost(id);
        if cost < EXPENSIVE {
            local.ready.push(id);
            local.backlog += u64::from(cost);
        } else if local.held.is_none() {
            local.held = Some(id);
            local.patience = PATIENCE;
        } else {
            self.hand_over([id], local);
        }
    }

    /// Gives the older half of what is ready to another thread, which may do so in turn.
    fn share(self: &Arc<Run>, local: &mut Local) {
        let half = local.ready.len() / 2;
        local.backlog /= 2;
        if half > 0 {
            let older: Vec<u32> = local.ready.drain(..half).collect();
            self.hand_over(older, local);
        }
    }

    /// Gives nodes to another thread.
    fn hand_over(self: &Arc<Run>, nodes: impl IntoIterator<Item = u32> + Send + 'static, local: &mut Local) {
        local.alone = false;
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        let run = self.clone();
        self.executor.pool.spawn(move || {
            run.work(|run, local| {
                for id in nodes {
                    local.ready.push(id);
                    local.backlog += u64::from(run.executor.cost(id));
                }
            });
        });
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

    fn finish(self: Arc<Run>) {
        let End { registration, done } =
            std::mem::replace(&mut *self.end.lock(), End { registration: None, done: None });
        if let Some(registration) = registration {
            self.step.cancellation.deregister(registration);
        }
        let error = self.error.lock().take();
        if error.is_some() {
            // SAFETY: nothing is outstanding, so nobody uses the state, nor will.
            unsafe { self.state.clear() };
        }
        self.executor.keep_state(self.state.clone());
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

impl Local {
    /// Another thread may work on the step from now on.
    pub(super) fn joined(&mut self) {
        self.alone = false;
    }

    pub(super) fn outputs_of(&mut self, planned: &PlanNode) -> &mut [Value] {
        let count = planned.outputs as usize;
        if self.outputs.len() < count {
            self.outputs.resize_with(count, Value::default);
        }
        &mut self.outputs[..count]
    }
}
