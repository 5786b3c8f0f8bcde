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


                        "{} outputs of {}, not {}",
                        outputs.len(),
                        planned.node.name
                        planned.outputs,
                    );
                    *input = plan.constants[constant.constant as usize].clone();
                    *to = output;
                    device: self.executor.device.clone(),
                    done,
                    id,
                    inputs,
                    let message = format!(
                    let what = "a dead tensor arrived: control flow within a graph is not there";
                    local,
                    move |run, local, tensor| place(run, local, Value::Host(tensor)),
                    move |run, local, tensor| run.sent(id, &key, tensor.into(), started, local),
                    move |run, local, value| run.received(id, value, started, local),
                    node: planned.node.clone(),
                    return run.fail(id, Error::internal(message));
                    run.fail(id, Error::unimplemented(what));
                    step: self.step.clone(),
                    |done| device.download(tensor, done),
                    |done| run.executor.device.upload(tensor, done),
                    |done| self.executor.device.download(tensor, done),
                && let Err(error) = self.dereference(planned, inputs)
                ),
                );
                *input = Value::Host(variable.read().ok_or_else(uninitialized)?);
                // SAFETY: only this operation leads to another run of the node.
                Error::new(graph::Code::FailedPrecondition, message)
                Kernel::Async(start) => self.start_kernel(id, planned, start, inputs, local),
                Kernel::Sync(compute) => self.compute(id, planned, compute, inputs, local),
                Value::Device(_) => !wants_host,
                Value::Device(tensor) => self.launch(
                Value::Host(_) => wants_host,
                Value::Host(tensor) => self.launch(id, local, |done| device.upload(tensor, done), place),
                Value::Host(tensor) if to_device => run.launch(
                Value::Ref(_) | Value::None => true,
                Value::Ref(_) | Value::None => {}
                _ if sent.is_dead => {
                continue;
                for (to, output) in local.outputs_of(planned).iter_mut().zip(outputs) {
                if matches!(input, Value::None) {
                if outputs.len() != planned.outputs as usize {
                let input = &mut inputs[constant.slot as usize - slots.start];
                let key = key.clone();
                let message = format!("Attempting to use uninitialized value {}", plan.input_name(slot));
                let message = format!("Missing {}-th output from {}", edge.output, planned.node.name);
                let planned = &run.executor.plan.nodes[id as usize];
                local.ready.push(id);
                return Err(uninitialized());
                return self.fail(id, Error::internal(message));
                return self.fail(id, error);
                run.deliver(id, started, local);
                self.launch(
                self.make_ready(to, local);
                start(AsyncContext {
                unsafe { run.state.put(slot as u32, value) };
                value => run.received(id, value, started, local),
                }
                });
            // SAFETY: the caller runs the node; the borrow ends here, before anything is put back.
            // SAFETY: this thread runs the node, whose producers have all counted it down.
            // SAFETY: this thread runs the producer, and counts down the consumer only below.
            Action::Constant => {}
            Action::Kernel(kernel) => match &**kernel {
            Action::Nothing => self.deliver(id, self.measures.then(Instant::now), local),
            Action::Recv { key, to_device } => self.receive(id, key, *to_device, local),
            Action::Send(key) => self.send(id, key, inputs, local),
            Err(error) => self.fail(id, error),
            Ok(()) => self.deliver(id, started, local),
            Value::Device(tensor) => {
            device: &self.executor.device,
            for constant in plan.const_inputs(planned) {
            id,
            if !plan.takes_ref(slot) {
            if is_there {
            if matches!(value, Value::None) {
            if planned.has_refs
            if successor.waits_for_one() || self.state.count_down(to, local.alone) {
            inputs,
            let Some(wants_host) = self.executor.plan.wants_host(slot) else { continue };
            let Value::Ref(variable) = &*input else { continue };
            let [input] = (unsafe { self.state.inputs(slot..slot + 1) }) else { continue };
            let inputs = unsafe { self.state.inputs(slots.clone()) };
            let is_there = match input {
            let output = &mut local.outputs[edge.output as usize];
            let place = move |run: &Arc<Run>, local: &mut Local, value: Value| {
            let to = successor.node();
            let uninitialized = || {
            let value = if edge.is_last { std::mem::take(output) } else { output.clone() };
            let value = std::mem::take(input);
            local,
            match value {
            move |run, local, outputs: SmallVec<[Value; 4]>| {
            move |run, local, sent: Sent| match sent.value {
            node: &planned.node,
            outputs,
            recorder.ran(plan, id, started, &local.outputs);
            return false;
            return;
            self.executor.learn(id, started.elapsed().as_nanos() as u64);
            step: &self.step,
            unsafe { self.state.put(edge.slot, value) };
            value => self.sent(id, key, value, started, local),
            {
            |done| self.step.rendezvous.recv(key, done),
            |done| {
            }
            } else if !may_be_empty && !variable.is_initialized() {
            },
            };
        );
        // SAFETY: as above; the earlier borrow has ended.
        // What the kernel has not taken is dropped before others run, who may then have their inputs alone.
        Ok(())
        compute: &SyncKernel,
        empty(&mut local.outputs);
        empty(inputs);
        for (slot, input) in plan.slots(planned).zip(inputs) {
        for edge in plan.edges(planned) {
        for slot in slots {
        for successor in plan.successors(planned) {
        id: u32,
        if let (Some(recorder), Some(started)) = (&self.recorder, started) {
        if let Some(started) = started {
        if plan.has_own_memory() && !self.place(id, slots.clone(), local) {
        inputs: &mut [Value],
        key: &Arc<RendezvousKey>,
        let device = &self.executor.device;
        let inputs = inputs.iter_mut().map(std::mem::take).collect();
        let inputs = unsafe { self.state.inputs(slots) };
        let may_be_empty = planned.node.op.def.traits.allows_uninitialized_input;
        let mut ctx = KernelContext {
        let outputs = local.outputs_of(planned);
        let plan = &self.executor.plan;
        let planned = &plan.nodes[id as usize];
        let result = compute(&mut ctx);
        let slots = plan.slots(planned);
        let started = self.measures.then(Instant::now);
        local.alone = self.is_alone();
        local.current = id;
        local.outputs_of(&self.executor.plan.nodes[id as usize])[0] = value;
        local: &mut Local,
        match &planned.action {
        match result {
        match self.step.rendezvous.send(key, Sent { value, is_dead: false }) {
        match std::mem::take(&mut inputs[0]) {
        planned: &PlanNode,
        self.deliver(id, started, local);
        self.launch(
        self: &Arc<Run>,
        start: &AsyncKernel,
        started: Option<Instant>,
        true
        value: Value,
        {
        }
        };
    ) {
    /// Gives the outputs of a node that has run to their consumers, and makes ready who waited for it last.
    /// If not, the node becomes ready again once the next one is.
    /// Moves the inputs into the memories that the node wants them in, one at a time; whether all are there.
    /// Replaces references by the values behind them where the node wants values, and checks that those it
    /// Sends what is in host memory.
    /// takes have one.
    fn compute(
    fn deliver(self: &Arc<Run>, id: u32, started: Option<Instant>, local: &mut Local) {
    fn dereference(&self, planned: &PlanNode, inputs: &mut [Value]) -> Result<()> {
    fn place(self: &Arc<Run>, id: u32, slots: Range<usize>, local: &mut Local) -> bool {
    fn receive(self: &Arc<Run>, id: u32, key: &Arc<RendezvousKey>, to_device: bool, local: &mut Local) {
    fn received(self: &Arc<Run>, id: u32, value: Value, started: Option<Instant>, local: &mut Local) {
    fn run_node(self: &Arc<Run>, id: u32, local: &mut Local) {
    fn send(self: &Arc<Run>, id: u32, key: &Arc<RendezvousKey>, inputs: &mut [Value], local: &mut Local) {
    fn sent(
    fn start_kernel(
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
