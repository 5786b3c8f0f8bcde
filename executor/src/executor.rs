//! The executor: runs one device's partition of a graph, step after step.
//!
//! Registration compiles the partition ([`plan`]). A step changes dense arrays ([`state`]) and is run by several
//! threads only if its nodes take longer than a hand-over between threads ([`run`], [`node`]); operations that end
//! later resume the step through [`launch`]. The state of nodes and the delivery of values depend on the partition and
//! form a [`flow`]: [`straight`] if each node runs once, [`frames`] if there are branches and loops ([`frame_plan`],
//! [`iteration`]).
//!
//! On devices whose kernels only enqueue work, kernels that may be enqueued as one graph form a [`segment`].
//! [`segment_selection`] selects the kernels of segments by the times that [`availability`] computes, and
//! [`segment_layout`] determines the inputs and outputs of each segment.

#[cfg(test)]
mod control_flow_tests;
#[cfg(test)]
mod tests;

use crate::frames::FramedFlow;
use crate::kernel_cache::KernelCache;
use crate::library_functions::LibraryFunctions;
use crate::plan::Plan;
use crate::run::Run;
use crate::start::{Start, StartFacts};
use crate::state::RunState;
use crate::straight::StraightFlow;
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

/// A compiled partition. Any number of its steps may run concurrently.
pub struct Executor {
    pub(crate) plan: Plan,
    pub(crate) device: Arc<Device>,
    pub(crate) pool: Arc<Pool>,
    /// The estimated duration of each node in ns, from recent runs; 0 before the first run.
    pub(crate) costs: Box<[AtomicU32]>,
    steps: AtomicU64,
    /// True if recent steps took less time than another thread takes to start.
    is_light: AtomicBool,
    /// True if the work after each received value recently took less time than another thread takes to start.
    has_light_receives: AtomicBool,
    /// Run states that no step uses, for reuse.
    states: Mutex<Vec<Arc<RunState>>>,
}

/// The maximum number of idle run states that are kept for reuse.
pub(crate) const MAX_IDLE_STATES: usize = 16;

/// The duration in ns from which a single node is worth handing to another thread: a hand-over costs a few
/// microseconds.
pub(crate) const EXPENSIVE_NANOS: u32 = 15_000;

/// The minimum duration in ns of a ready node that counts towards the backlog, from which a thread decides to share its
/// ready nodes. Two threads that run shorter nodes lose more time than they gain, because they decrement the same
/// pending counts.
const SHAREABLE_NANOS: u32 = 1_000;

/// The number of a partition's first steps whose costs are measured, and the interval of measured steps afterwards. Not
/// all steps are measured, because reading a clock costs as much as a small node.
const NUM_FIRST_MEASURED: u64 = 4;
const MEASURED_INTERVAL: u64 = 16;

/// The number of nodes above which a step never counts as light.
const MAX_LIGHT_NODES: usize = 1024;

/// The duration in ns below which a step is light: waking a sleeping thread takes as long.
pub(crate) const LIGHT_NANOS: u64 = 50_000;

/// The maximum duration in ns of a step whose work after received values counts as light; the duration must also be at
/// most `LIGHT_NANOS` for each receive. The limit exists because all the work may wait for the last value.
const LIGHT_TOTAL_NANOS: u64 = 250_000;

/// The overhead of the executor for each node in ns.
pub(crate) const NODE_OVERHEAD_NANOS: u64 = 100;

impl Executor {
    /// Compiles one device's partition: every node is placed on this device, and the attributes of each Send and Recv
    /// give its full key.
    ///
    /// # Errors
    /// An error that names the node if the partition cannot run: a missing kernel, invalid attributes, or a cycle that
    /// is not a loop.
    pub fn new(
        graph: &Graph,
        device: Arc<Device>,
        pool: Arc<Pool>,
        kernels: &KernelCache,
    ) -> Result<Executor> {
        let devices = Arc::from([device.clone()]);
        Executor::with_devices(graph, device, &devices, pool, kernels)
    }

    /// Compiles a partition like [`Executor::new`]; its functions may also be called on the other `devices` of the
    /// task.
    ///
    /// # Errors
    /// Those of [`Executor::new`].
    pub fn with_devices(
        graph: &Graph,
        device: Arc<Device>,
        devices: &Arc<[Arc<Device>]>,
        pool: Arc<Pool>,
        kernels: &KernelCache,
    ) -> Result<Executor> {
        let functions = LibraryFunctions::of_graph(&graph.library, &device, devices, &pool);
        Executor::with_functions(graph, device, pool, kernels, &functions)
    }

    /// Compiles a partition like [`Executor::new`], whose kernels may call `functions`.
    pub(crate) fn with_functions(
        graph: &Graph,
        device: Arc<Device>,
        pool: Arc<Pool>,
        kernels: &KernelCache,
        functions: &Arc<dyn Functions>,
    ) -> Result<Executor> {
        let plan = Plan::new(graph, &device, kernels, functions)?;
        let costs = plan.nodes.iter().map(|_| AtomicU32::new(0)).collect();
        let steps = AtomicU64::new(0);
        let (is_light, has_light_receives) = (AtomicBool::new(false), AtomicBool::new(false));
        let states = Mutex::default();
        Ok(Executor { plan, device, pool, costs, steps, is_light, has_light_receives, states })
    }

    /// Starts a step. `done` is called exactly once, after every node has ended: on a pool thread, on a thread that
    /// [accepts inline tasks](Pool::with_inline_tasks), or before this function returns if the whole step takes less
    /// time than a thread takes to start. If a node fails, the step is cancelled with that error as the reason, and
    /// `done` receives the error.
    pub fn run(self: &Arc<Self>, step: Arc<Step>, trace: bool, done: Box<dyn FnOnce(Result<Trace>) + Send>) {
        let number = self.steps.fetch_add(1, Ordering::Relaxed);
        let measures = number < NUM_FIRST_MEASURED || number.is_multiple_of(MEASURED_INTERVAL);
        match Start::choose(self.start_facts()) {
            Start::FramesOnPool => {
                let run = Run::<FramedFlow>::new(self, step, trace, measures, done);
                self.pool.spawn(move || run.start());
            }
            start => {
                let run = Run::<StraightFlow>::new(self, step, trace, measures, done);
                match start {
                    Start::OnCaller => run.start(),
                    Start::InlineTask => self.pool.run_inline(move || run.start()),
                    Start::ReceivesOnCaller => run.start_receives(),
                    Start::OnPool | Start::FramesOnPool => self.pool.spawn(move || run.start()),
                }
            }
        }
    }

    /// Returns the facts that decide how a step starts on the calling thread.
    fn start_facts(&self) -> StartFacts {
        StartFacts {
            has_control_flow: !self.plan.frames.is_empty(),
            is_brief: self.plan.is_brief,
            is_light: self.is_light(),
            starts_with_receives: self.plan.starts_with_receives,
            is_compute_thread: Pool::is_compute_thread(),
            runs_inline_tasks: visit::can_run_inline(),
        }
    }

    /// Returns whether a step may run as an inline task of a thread that [accepts inline
    /// tasks](Pool::with_inline_tasks).
    fn is_light(&self) -> bool {
        self.is_light.load(Ordering::Relaxed)
    }

    /// Returns whether the work that follows a received value may run as an inline task.
    pub fn has_light_receives(&self) -> bool {
        self.has_light_receives.load(Ordering::Relaxed)
    }

    /// Determines, after a measured step, whether steps and the work after received values count as light.
    pub fn update_lightness(&self) {
        let nodes = self.plan.nodes.len();
        let is_known = self.steps.load(Ordering::Relaxed) >= NUM_FIRST_MEASURED;
        if !is_known || nodes > MAX_LIGHT_NODES || !self.plan.frames.is_empty() {
            return;
        }
        let kernels: u64 = self.costs.iter().map(|cost| u64::from(cost.load(Ordering::Relaxed))).sum();
        let step = kernels + nodes as u64 * NODE_OVERHEAD_NANOS;
        let max_light = (LIGHT_NANOS * self.plan.num_receives as u64).min(LIGHT_TOTAL_NANOS);
        self.is_light.store(step <= LIGHT_NANOS, Ordering::Relaxed);
        self.has_light_receives.store(step <= max_light, Ordering::Relaxed);
    }

    /// Returns a run state for a new step: an idle state if there is one, else a new state.
    pub(crate) fn take_state(&self) -> Arc<RunState> {
        let idle = self.states.lock().pop();
        match idle {
            Some(state) => {
                state.reset(&self.plan);
                state
            }
            None => Arc::new(RunState::new(&self.plan)),
        }
    }

    /// Stores a run state, whose slots must be empty, for reuse.
    pub(crate) fn store_state(&self, state: Arc<RunState>) {
        let mut states = self.states.lock();
        if states.len() < MAX_IDLE_STATES {
            states.push(state);
        }
    }

    /// Returns the node's expected duration in ns; 0 if the node is too short to share, or the pool has only one
    /// thread.
    pub fn cost(&self, node: u32) -> u32 {
        let cost = self.costs[node as usize].load(Ordering::Relaxed);
        if cost >= SHAREABLE_NANOS && self.pool.threads() > 1 { cost } else { 0 }
    }

    /// Returns whether the node takes so long that it must not delay other ready nodes.
    pub fn is_expensive(&self, node: u32) -> bool {
        self.costs[node as usize].load(Ordering::Relaxed) >= EXPENSIVE_NANOS
    }

    /// Updates the node's expected duration. Estimates fall fast and rise slowly, because a thread that lost its
    /// processor for a while must not make a small node look expensive for long.
    pub fn record_cost(&self, node: u32, nanos: u64) {
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
