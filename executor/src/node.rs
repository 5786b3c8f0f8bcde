//! The execution of one node: its inputs are dereferenced and moved to the required memory, its kernel runs, and its
//! outputs are delivered.

use super::action::{Action, ControlFlowOp, RequiredMemory, SendPath};
use super::flow::Flow;
use super::plan::PlanNode;
use super::run::{Run, ThreadState};
use super::state::discard_all;
use device::kernel::{AsyncContext, AsyncKernel, Kernel, KernelContext, SyncKernel};
use device::rendezvous::{RendezvousKey, Sent};
use device::transfer;
use device::transfer::{holds_device_elements, to_host};
use device::value::Value;
use device::{Error, Result};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

impl<F: Flow> Run<F> {
    pub(super) fn run_node(self: &Arc<Run<F>>, task: F::Task, local: &mut ThreadState<F>) {
        let id = F::node(&task);
        local.current = id;
        let plan = &self.executor.plan;
        let planned = &plan.nodes[id as usize];
        let slots = plan.slots(planned);
        if F::is_dead(&task) {
            return self.run_dead(task, local);
        }
        {
            // SAFETY: this thread owns the task, whose producers have all decremented its count.
            let inputs = unsafe { self.flow.inputs(&task, slots.clone()) };
            plan.fill_constants(planned, inputs);
            if planned.has_refs
                && let Err(error) = self.dereference(planned, inputs)
            {
                return self.fail(id, error);
            }
        }
        let task = match plan.has_own_memory() {
            true => match self.place(task, slots.clone(), local) {
                Some(task) => task,
                None => return,
            },
            false => task,
        };
        match &planned.action {
            Action::Kernel(kernel) => match &**kernel {
                Kernel::Sync(compute) => self.compute(task, planned, compute, slots, local),
                Kernel::Async(start) => self.start_kernel(task, planned, start, slots, local),
            },
            Action::Send { key, path } => self.send(task, key, *path, slots, local),
            Action::Recv { key, to_device } => self.receive(task, key, *to_device, local),
            Action::Trigger => F::deliver(self, task, self.measures.then(Instant::now), local),
            Action::ControlFlow(op) => self.run_control_flow(task, planned, op, slots, local),
            Action::Segment(number) => {
                self.run_segment(task, &plan.segments[*number as usize], local);
            }
            Action::Constant => {}
        }
    }

    /// Ends a task with a dead input, whose node does not run. A Send still sends the mark of a dead tensor, and a Recv
    /// still receives, so that the other device proceeds.
    fn run_dead(self: &Arc<Run<F>>, task: F::Task, local: &mut ThreadState<F>) {
        let id = F::node(&task);
        let plan = &self.executor.plan;
        let planned = &plan.nodes[id as usize];
        // SAFETY: this thread owns the task, whose producers have all decremented its count.
        discard_all(unsafe { self.flow.inputs(&task, plan.slots(planned)) });
        match &planned.action {
            Action::Send { key, .. } => match self.step.rendezvous.send(&F::key(&task, key), Sent::dead()) {
                Ok(()) => F::deliver(self, task, None, local),
                Err(error) => self.fail(id, error),
            },
            Action::Recv { key, to_device } => self.receive(task, key, *to_device, local),
            Action::Segment(number) => {
                self.clear_segment(&task, &plan.segments[*number as usize]);
                F::deliver(self, task, None, local);
            }
            _ => F::deliver(self, task, None, local),
        }
    }

    /// Runs a control-flow op, which forwards a value.
    fn run_control_flow(
        self: &Arc<Run<F>>,
        task: F::Task,
        planned: &PlanNode,
        op: &ControlFlowOp,
        slots: Range<usize>,
        local: &mut ThreadState<F>,
    ) {
        let started = self.measures.then(Instant::now);
        // SAFETY: this thread owns the task.
        let inputs = unsafe { self.flow.inputs(&task, slots) };
        let result = op.run(inputs, local.outputs_of(planned));
        discard_all(inputs);
        match result {
            Ok(()) => F::deliver(self, task, started, local),
            Err(error) => self.fail(F::node(&task), error),
        }
    }

    fn compute(
        self: &Arc<Run<F>>,
        task: F::Task,
        planned: &PlanNode,
        compute: &SyncKernel,
        slots: Range<usize>,
        local: &mut ThreadState<F>,
    ) {
        // SAFETY: this thread owns the task; no other borrow of its inputs exists.
        let inputs = unsafe { self.flow.inputs(&task, slots) };
        let outputs = local.outputs_of(planned);
        let started = self.measures.then(Instant::now);
        let mut ctx = KernelContext {
            node: &planned.node,
            device: &self.executor.device,
            step: &self.step,
            inputs,
            outputs,
        };
        let result = compute(&mut ctx);
        if let Some(started) = started {
            self.executor.record_cost(F::node(&task), started.elapsed().as_nanos() as u64);
        }
        // Inputs that the kernel has not taken are dropped before consumers run, so that a consumer may own the buffers
        // uniquely.
        discard_all(inputs);
        match result {
            Ok(()) => F::deliver(self, task, started, local),
            Err(error) => self.fail(F::node(&task), error),
        }
    }

    fn start_kernel(
        self: &Arc<Run<F>>,
        task: F::Task,
        planned: &PlanNode,
        start: &AsyncKernel,
        slots: Range<usize>,
        local: &mut ThreadState<F>,
    ) {
        let id = F::node(&task);
        let started = self.measures.then(Instant::now);
        // SAFETY: this thread owns the task; no other borrow of its inputs exists.
        let inputs = unsafe { self.flow.inputs(&task, slots) };
        let inputs = inputs.iter_mut().map(std::mem::take).collect();
        let position = F::position(&task);
        self.launch(
            id,
            local,
            |done| {
                start(AsyncContext {
                    node: planned.node.clone(),
                    device: self.executor.device.clone(),
                    step: self.step.clone(),
                    position,
                    inputs,
                    done,
                });
            },
            move |run, local, outputs: SmallVec<[Value; 4]>| {
                let planned = &run.executor.plan.nodes[id as usize];
                if outputs.len() != planned.outputs as usize {
                    let message = format!(
                        "{} outputs of {}, not {}",
                        outputs.len(),
                        planned.outputs,
                        planned.node.name
                    );
                    return run.fail(id, Error::internal(message));
                }
                for (to, output) in local.outputs_of(planned).iter_mut().zip(outputs) {
                    *to = output;
                }
                F::deliver(run, task, started, local);
            },
        );
    }

    fn send(
        self: &Arc<Run<F>>,
        task: F::Task,
        key: &Arc<RendezvousKey>,
        path: SendPath,
        slots: Range<usize>,
        local: &mut ThreadState<F>,
    ) {
        let started = self.measures.then(Instant::now);
        let key = F::key(&task, key);
        // SAFETY: this thread owns the task; no other borrow of its inputs exists.
        let inputs = unsafe { self.flow.inputs(&task, slots) };
        let value = std::mem::take(&mut inputs[0]);
        let is_elsewhere = || match &value {
            Value::Device(_) => true,
            Value::Host(tensor) => holds_device_elements(tensor),
            _ => false,
        };
        if path == SendPath::SameTask || !is_elsewhere() {
            return self.sent(task, &key, value, started, local);
        }
        let device = &self.executor.device;
        match value {
            Value::Device(tensor)
                if path == SendPath::PeerProcess
                    && self.step.rendezvous.can_share_with_peer(&key, device, &tensor) =>
            {
                self.launch(
                    F::node(&task),
                    local,
                    |done| device.processor().export(tensor, done),
                    move |run, local, value| run.sent(task, &key, value, started, local),
                );
            }
            value => self.launch(
                F::node(&task),
                local,
                |done| to_host(device, value, done),
                move |run, local, tensor| run.sent(task, &key, tensor.into(), started, local),
            ),
        }
    }

    /// Sends `value`, which is already in the memory in which the receiver expects it.
    fn sent(
        self: &Arc<Run<F>>,
        task: F::Task,
        key: &Arc<RendezvousKey>,
        value: Value,
        started: Option<Instant>,
        local: &mut ThreadState<F>,
    ) {
        match self.step.rendezvous.send(key, Sent { value, is_dead: false }) {
            Ok(()) => F::deliver(self, task, started, local),
            Err(error) => self.fail(F::node(&task), error),
        }
    }

    fn receive(
        self: &Arc<Run<F>>,
        task: F::Task,
        key: &Arc<RendezvousKey>,
        to_device: bool,
        local: &mut ThreadState<F>,
    ) {
        let started = self.measures.then(Instant::now);
        let key = F::key(&task, key);
        self.launch(
            F::node(&task),
            local,
            |done| self.step.rendezvous.recv(&key, done),
            move |run, local, sent: Sent| match sent.value {
                _ if sent.is_dead => F::deliver_dead(run, task, local),
                value => run.bring(task, value, to_device, started, local),
            },
        );
    }

    /// Moves a received value to the required memory. A tensor in the memory of another device, which this device
    /// cannot access, is moved through host memory.
    fn bring(
        self: &Arc<Run<F>>,
        task: F::Task,
        value: Value,
        to_device: bool,
        started: Option<Instant>,
        local: &mut ThreadState<F>,
    ) {
        let (id, device) = (F::node(&task), &self.executor.device);
        match value {
            value @ Value::Host(_) if to_device => self.launch(
                id,
                local,
                |done| transfer::to_device(device, value, done),
                move |run, local, value| run.received(task, value, started, local),
            ),
            value @ Value::Device(_) if to_device => self.launch(
                id,
                local,
                |done| transfer::to_device(device, value, done),
                move |run, local, value| match value {
                    Value::Host(_) => run.bring(task, value, to_device, started, local),
                    value => run.received(task, value, started, local),
                },
            ),
            value @ Value::Device(_) => self.launch(
                id,
                local,
                |done| to_host(device, value, done),
                move |run, local, tensor| run.received(task, tensor.into(), started, local),
            ),
            value => self.received(task, value, started, local),
        }
    }

    fn received(
        self: &Arc<Run<F>>,
        task: F::Task,
        value: Value,
        started: Option<Instant>,
        local: &mut ThreadState<F>,
    ) {
        local.outputs_of(&self.executor.plan.nodes[F::node(&task) as usize])[0] = value;
        F::deliver(self, task, started, local);
    }

    /// Replaces references by the values behind them at ports that take values, and checks that variables at reference
    /// ports have a value if the node requires one.
    pub(super) fn dereference(&self, planned: &PlanNode, inputs: &mut [Value]) -> Result<()> {
        let plan = &self.executor.plan;
        let may_be_empty = planned.node.op.def.traits.allows_uninitialized_input;
        let is_only_input = inputs.len() == 1;
        for (slot, input) in plan.slots(planned).zip(inputs) {
            if !matches!(input, Value::Ref(_) | Value::View(_)) {
                continue;
            }
            let uninitialized = || {
                let message = format!("Attempting to use uninitialized value {}", plan.input_name(slot));
                Error::new(graph::Code::FailedPrecondition, message)
            };
            if !plan.takes_ref(slot) {
                let before = if may_be_empty { input.clone() } else { Value::None };
                match std::mem::take(input).dereferenced()? {
                    Some(value) => *input = value,
                    // An op that watches a variable also runs before the variable has a value.
                    None if may_be_empty && is_only_input => *input = before,
                    None => return Err(uninitialized()),
                }
            } else if let Value::Ref(variable) = &*input
                && !may_be_empty
                && !variable.may_be_initialized()
            {
                return Err(uninitialized());
            }
        }
        Ok(())
    }

    /// Moves the inputs of a node to the required memories, one at a time. Returns the task if all inputs are in these
    /// memories; otherwise, the completion of a move makes the node ready again.
    pub(super) fn place(
        self: &Arc<Run<F>>,
        task: F::Task,
        slots: impl IntoIterator<Item = usize>,
        local: &mut ThreadState<F>,
    ) -> Option<F::Task> {
        let device = &self.executor.device;
        for slot in slots {
            let required = self.executor.plan.required_memory(slot);
            // SAFETY: this thread owns the task; the borrow ends before the moved value is stored in the slot.
            let [input] = (unsafe { self.flow.inputs(&task, slot..slot + 1) }) else { continue };
            let is_there = match input {
                Value::Host(_) => required != RequiredMemory::Device,
                Value::Device(_) => required != RequiredMemory::Host,
                Value::Ref(_) | Value::View(_) | Value::None => true,
            };
            if is_there {
                continue;
            }
            let (id, value) = (F::node(&task), std::mem::take(input));
            let place = move |run: &Arc<Run<F>>, local: &mut ThreadState<F>, value: Value| {
                // SAFETY: only this operation owns the task, whose node becomes ready again after the value is stored.
                if let [input] = unsafe { run.flow.inputs(&task, slot..slot + 1) } {
                    *input = value;
                }
                local.ready.push(task);
            };
            match value {
                Value::Host(tensor) => {
                    self.launch(id, local, |done| device.processor().upload(tensor, done), place)
                }
                Value::Device(tensor) => self.launch(
                    id,
                    local,
                    |done| device.processor().download(tensor, done),
                    move |run, local, tensor| place(run, local, Value::Host(tensor)),
                ),
                Value::Ref(_) | Value::View(_) | Value::None => {}
            }
            return None;
        }
        Some(task)
    }
}
