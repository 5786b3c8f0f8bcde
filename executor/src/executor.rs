//! The executor: runs one device's partition of a graph, step after step.
//!
//! Registration compiles the partition ([`plan`]); a step touches dense arrays ([`state`]) and walks them with
//! as few threads as the work deserves ([`run`], [`node`]); what does not end at once comes back through
//! [`launch`]. Where a node's state is and what follows it is a [`flow`]: [`straight`] where each node runs once,
//! [`frames`] where there are branches and loops ([`frame_plan`]).
//!
//! Where kernels only enqueue, those that may be enqueued as one are a [`segment`]: which they are [`segments`] decides, by
//! what [`arrivals`] says of when there is what they wait for, and [`segmented`] lays them out.

#[cfg(test)]
mod control_flow_tests;
#[cfg(test)]
mod tests;

use crate::frames::Framed;
use crate::kernel_cache::KernelCache;
use crate::library_functions::LibraryFunctions;
use crate::plan::Plan;
use crate::run::Run;
use crate::state::State;
use crate::straight::Straight;
use crate::trace::Trace;
use device::Device;
use device::Pool;
use device::Result;
use device::function::Functions;
use device::kernel::Step;
use graph::Graph;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A compiled partition. Any number of its steps may run at once.
pub struct Executor {
    pub(crate) plan: Plan,
    pub(crate) device: Arc<Device>,
    pub(crate) pool: Arc<Pool>,
    /// What running each node took, ns, by recent experience; 0 before the first.
    pub(crate) costs: Box<[AtomicU32]>,
    steps: AtomicU64,
    /// By recent experience, a step is over sooner than another thread would begin it.
    is_light: AtomicBool,
    /// As `is_light`, of what follows from each value that is received.
    receives_lightly: AtomicBool,
    /// States that no step uses.
    states: Mutex<Vec<Arc<State>>>,
}

/// At most so many idle states are kept.
pub(crate) const KEPT_STATES: usize = 16;

/// Nodes that take longer than this, ns, are worth another thread: a hand-over costs a few microseconds.
pub(crate) const EXPENSIVE: u32 = 15_000;

/// Nodes that take at least this, ns, are worth another thread in numbers; smaller ones lose more by two threads
/// that count down the same nodes than they gain.
const SHAREABLE: u32 = 1_000;

/// Costs are measured in the first steps, and then in one of so many, for clocks cost as much as small nodes.
const MEASURED_AT_FIRST: u64 = 4;
const MEASURED_EVERY: u64 = 16;

/// Steps of more nodes are not light, whatever they take.
const MOST_LIGHT: usize = 1024;

/// Steps that take less than this, ns, are light: a thread that sleeps takes as long to wake.
pub(crate) const LIGHT: u64 = 50_000;

/// What follows from the values that a step receives is light if it takes less than `LIGHT` for each, and this in all,
/// ns: it may be that all of it waits for the last.
const LIGHT_IN_ALL: u64 = 250_000;

/// What a node takes besides its kernel, ns.
pub(crate) const NODE: u64 = 100;

impl Executor {
    /// Compiles one device's partition: every node is of this device, and the attributes of each Send and Recv
    /// hold its full key.
    ///
    /// # Errors
    /// What makes the partition unfit to run, with the node's name: no kernel, bad attributes, a cycle
    /// that is no loop.
    pub fn new(
        graph: &Graph,
        device: Arc<Device>,
        pool: Arc<Pool>,
        kernels: &KernelCache,
    ) -> Result<Executor> {
        let devices = Arc::from([device.clone()]);
        Executor::among(graph, device, &devices, pool, kernels)
    }

    /// As [`Executor::new`], where functions may be called on other devices of the task.
    ///
    /// # Errors
    /// As of [`Executor::new`].
    pub fn among(
        graph: &Graph,
        device: Arc<Device>,
        devices: &Arc<[Arc<Device>]>,
        pool: Arc<Pool>,
        kernels: &KernelCache,
    ) -> Result<Executor> {
        let functions = LibraryFunctions::of_graph(&graph.library, &device, devices, &pool);
        Executor::of_function(graph, device, pool, kernels, &functions)
    }

    /// As [`Executor::new`], with the functions that the kernels may call.
    pub(crate) fn of_function(
        graph: &Graph,
        device: Arc<Device>,
        pool: Arc<Pool>,
        kernels: &KernelCache,
        functions: &Arc<dyn Functions>,
    ) -> Result<Executor> {
        let plan = Plan::new(graph, &device, kernels, functions)?;
        let costs = plan.nodes.iter().map(|_| AtomicU32::new(0)).collect();
        let steps = AtomicU64::new(0);
        let (is_light, receives_lightly) = (AtomicBool::new(false), AtomicBool::new(false));
        let states = Mutex::default();
        Ok(Executor { plan, device, pool, costs, steps, is_light, receives_lightly, states })
    }

    /// Starts a step; `done` is called exactly once, after every node has ended: from a pool thread or one that was
    /// [lent](Pool::lend_thread), or before this returns where the whole step takes less than a thread's start. If a
    /// node failed, the step was cancelled with that failure as the reason, and it is the result.
    pub fn run(self: &Arc<Self>, step: Arc<Step>, trace: bool, done: Box<dyn FnOnce(Result<Trace>) + Send>) {
        let number = self.steps.fetch_add(1, Ordering::Relaxed);
        let measures = number < MEASURED_AT_FIRST || number.is_multiple_of(MEASURED_EVERY);
        if !self.plan.frames.is_empty() {
            let run = Run::<Framed>::new(self, step, trace, measures, done);
            self.pool.spawn(move || run.start());
        } else {
            let run = Run::<Straight>::new(self, step, trace, measures, done);
            // On a compute thread, kernels may be waiting below.
            let is_compute_thread = Pool::is_compute_thread();
            if self.plan.is_brief && !is_compute_thread {
                run.start();
            } else if self.is_light() && visit::can_run_short() {
                self.pool.run_short(move || run.start());
            } else if self.plan.only_waits && !is_compute_thread {
                run.start_receives();
            } else {
                self.pool.spawn(move || run.start());
            }
        }
    }

    /// Whether a step may run on a thread that [was lent](Pool::lend_thread).
    fn is_light(&self) -> bool {
        self.is_light.load(Ordering::Relaxed)
    }

    /// As [`Executor::is_light`], of what goes on when a value is received.
    pub fn receives_lightly(&self) -> bool {
        self.receives_lightly.load(Ordering::Relaxed)
    }

    /// Learns from a step that was measured.
    pub fn weigh(&self) {
        let nodes = self.plan.nodes.len();
        let is_known = self.steps.load(Ordering::Relaxed) >= MEASURED_AT_FIRST;
        if !is_known || nodes > MOST_LIGHT || !self.plan.frames.is_empty() {
            return;
        }
        let kernels: u64 = self.costs.iter().map(|cost| u64::from(cost.load(Ordering::Relaxed))).sum();
        let step = kernels + nodes as u64 * NODE;
        let most = (LIGHT * self.plan.num_receives as u64).min(LIGHT_IN_ALL);
        self.is_light.store(step <= LIGHT, Ordering::Relaxed);
        self.receives_lightly.store(step <= most, Ordering::Relaxed);
    }

    pub(crate) fn take_state(&self) -> Arc<State> {
        let idle = self.states.lock().pop();
        match idle {
            Some(state) => {
                state.reset(&self.plan);
                state
            }
            None => Arc::new(State::new(&self.plan)),
        }
    }

    /// Takes back a state whose slots are empty.
    pub(crate) fn keep_state(&self, state: Arc<State>) {
        let mut states = self.states.lock();
        if states.len() < KEPT_STATES {
            states.push(state);
        }
    }

    /// What the node is expected to take, ns; 0 where other threads would not help.
    pub fn cost(&self, node: u32) -> u32 {
        let cost = self.costs[node as usize].load(Ordering::Relaxed);
        if cost >= SHAREABLE && self.pool.threads() > 1 { cost } else { 0 }
    }

    /// Whether others should not wait until the node has ended.
    pub fn is_expensive(&self, node: u32) -> bool {
        self.costs[node as usize].load(Ordering::Relaxed) >= EXPENSIVE
    }

    /// Learns what a node took. Estimates fall fast and rise slowly: a thread that lost its processor for a
    /// while must not make a small node look expensive for long.
    pub fn learn(&self, node: u32, nanos: u64) {
        let cost = &self.costs[node as usize];
        let nanos = u32::try_from(nanos).unwrap_or(u32::MAX).max(1);
        let new = match cost.load(Ordering::Relaxed) {
            0 => nanos,
            old if nanos < old => old / 2 + nanos / 2,
            old => old + (nanos - old) / 8,
        };
        cost.store(new, Ordering::Relaxed);
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executor({} nodes on {})", self.plan.nodes.len(), self.device.name())
    }
}
