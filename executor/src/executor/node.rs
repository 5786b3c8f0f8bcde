//! One node of a step: its inputs made fit, its kernel run, its outputs given to who waits for them.

use super::action::Action;
use super::plan::PlanNode;
use super::run::{Local, Run};
use super::state::empty;
use crate::error::{Error, Result};
use crate::kernel::{AsyncContext, AsyncKernel, Kernel, KernelContext, SyncKernel};
use crate::rendezvous::{RendezvousKey, Sent};
use crate::value::Value;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

impl Run {
    pub(super) fn run_node(self: &Arc<Run>, id: u32, local: &mut Local) {
        local.current = id;
        let plan = &self.executor.plan;
        let planned = &plan.nodes[id as usize];
        let slots = plan.slots(planned);
        {
            // SAFETY: this thread runs the node, whose producers have all counted it down.
            let inputs = unsafe { self.state.inputs(slots.clone()) };
            for constant in plan.const_inputs(planned) {
                let input = &mut inputs[constant.slot as usize - slots.start];
                if matches!(input, Value::None) {
                    *input = plan.constants[constant.constant as usize].clone();
                }
            }
            if planned.has_refs
                && let Err(error) = self.dereference(planned, inputs)
            {
                return self.fail(id, error);
            }
        }
        if plan.has_own_memory() && !self.place(id, slots.clone(), local) {
            return;
        }
        // SAFETY: as above; the earlier borrow has ended.
        let inputs = unsafe { self.state.inputs(slots) };
        match &planned.action {
            Action::Kernel(kernel) => match &**kernel {
                Kernel::Sync(compute) => self.compute(id, planned, compute, inputs, local),
                Kernel::Async(start) => self.start_kernel(id, planned, start, inputs, local),
            },
            Action::Send(key) => self.send(id, key, inputs, local),
            Action::Recv { key, to_device } => self.receive(id, key, *to_device, local),
            Action::Nothing => self.deliver(id, self.measures.then(Instant::now), local),
            Action::Constant => {}
        }
    }

    fn compute(
        self: &Arc<Run>,
        id: u32,
        planned: &PlanNode,
        compute: &SyncKernel,
        inputs: &mut [Value],
        local: &mut Local,
    ) {
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
            self.executor.learn(id, started.elapsed().as_nanos() as u64);
        }
        // What the kernel has not taken is dropped before others run, who may then have their inputs alone.
        empty(inputs);
        match result {
            Ok(()) => self.deliver(id, started, local),
            Err(error) => self.fail(id, error),
        }
    }

    fn start_kernel(
        self: &Arc<Run>,
        id: u32,
        planned: &PlanNode,
        start: &AsyncKernel,
        inputs: &mut [Value],
        local: &mut Local,
    ) {
        let started = self.measures.then(Instant::now);
        let inputs = inputs.iter_mut().map(std::mem::take).collect();
        self.launch(
            id,
            local,
            |done| {
                start(AsyncContext {
                    node: planned.node.clone(),
                    device: self.executor.device.clone(),
                    step: self.step.clone(),
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
                run.deliver(id, started, local);
            },
        );
    }

    fn send(self: &Arc<Run>, id: u32, key: &Arc<RendezvousKey>, inputs: &mut [Value], local: &mut Local) {
        let started = self.measures.then(Instant::now);
        match std::mem::take(&mut inputs[0]) {
            Value::Device(tensor) => {
                let key = key.clone();
                self.launch(
                    id,
                    local,
                    |done| self.executor.device.download(tensor, done),
                    move |run, local, tensor| run.sent(id, &key, tensor.into(), started, local),
                );
            }
            value => self.sent(id, key, value, started, local),
        }
    }

    /// Sends what is in host memory.
    fn sent(
        self: &Arc<Run>,
        id: u32,
        key: &Arc<RendezvousKey>,
        value: Value,
        started: Option<Instant>,
        local: &mut Local,
    ) {
        match self.step.rendezvous.send(key, Sent { value, is_dead: false }) {
            Ok(()) => self.deliver(id, started, local),
            Err(error) => self.fail(id, error),
        }
    }

    fn receive(self: &Arc<Run>, id: u32, key: &Arc<RendezvousKey>, to_device: bool, local: &mut Local) {
        let started = self.measures.then(Instant::now);
        self.launch(
            id,
            local,
            |done| self.step.rendezvous.recv(key, done),
            move |run, local, sent: Sent| match sent.value {
                _ if sent.is_dead => {
                    let what = "a dead tensor arrived: control flow within a graph is not there";
                    run.fail(id, Error::unimplemented(what));
                }
                Value::Host(tensor) if to_device => run.launch(
                    id,
                    local,
                    |done| run.executor.device.upload(tensor, done),
                    move |run, local, value| run.received(id, value, started, local),
                ),
                value => run.received(id, value, started, local),
            },
        );
    }

    fn received(self: &Arc<Run>, id: u32, value: Value, started: Option<Instant>, local: &mut Local) {
        local.outputs_of(&self.executor.plan.nodes[id as usize])[0] = value;
        self.deliver(id, started, local);
    }

    /// Replaces references by the values behind them where the node wants values, and checks that those it
    /// takes have one.
    fn dereference(&self, planned: &PlanNode, inputs: &mut [Value]) -> Result<()> {
        let plan = &self.executor.plan;
        let may_be_empty = planned.node.op.def.traits.allows_uninitialized_input;
        for (slot, input) in plan.slots(planned).zip(inputs) {
            let Value::Ref(variable) = &*input else { continue };
            let uninitialized = || {
                let message = format!("Attempting to use uninitialized value {}", plan.input_name(slot));
                Error::new(graph::Code::FailedPrecondition, message)
            };
            if !plan.takes_ref(slot) {
                *input = Value::Host(variable.read().ok_or_else(uninitialized)?);
            } else if !may_be_empty && !variable.is_initialized() {
                return Err(uninitialized());
            }
        }
        Ok(())
    }

    /// Moves the inputs into the memories that the node wants them in, one at a time; whether all are there.
    /// If not, the node becomes ready again once the next one is.
    fn place(self: &Arc<Run>, id: u32, slots: Range<usize>, local: &mut Local) -> bool {
        let device = &self.executor.device;
        for slot in slots {
            let Some(wants_host) = self.executor.plan.wants_host(slot) else { continue };
            // SAFETY: the caller runs the node; the borrow ends here, before anything is put back.
            let [input] = (unsafe { self.state.inputs(slot..slot + 1) }) else { continue };
            let is_there = match input {
                Value::Host(_) => wants_host,
                Value::Device(_) => !wants_host,
                Value::Ref(_) | Value::None => true,
            };
            if is_there {
                continue;
            }
            let value = std::mem::take(input);
            let place = move |run: &Arc<Run>, local: &mut Local, value: Value| {
                // SAFETY: only this operation leads to another run of the node.
                unsafe { run.state.put(slot as u32, value) };
                local.ready.push(id);
            };
            match value {
                Value::Host(tensor) => self.launch(id, local, |done| device.upload(tensor, done), place),
                Value::Device(tensor) => self.launch(
                    id,
                    local,
                    |done| device.download(tensor, done),
                    move |run, local, tensor| place(run, local, Value::Host(tensor)),
                ),
                Value::Ref(_) | Value::None => {}
            }
            return false;
        }
        true
    }

    /// Gives the outputs of a node that has run to their consumers, and makes ready who waited for it last.
    fn deliver(self: &Arc<Run>, id: u32, started: Option<Instant>, local: &mut Local) {
        let plan = &self.executor.plan;
        let planned = &plan.nodes[id as usize];
        if let (Some(recorder), Some(started)) = (&self.recorder, started) {
            recorder.ran(plan, id, started, &local.outputs);
        }
        for edge in plan.edges(planned) {
            let output = &mut local.outputs[edge.output as usize];
            let value = if edge.is_last { std::mem::take(output) } else { output.clone() };
            if matches!(value, Value::None) {
                let message = format!("Missing {}-th output from {}", edge.output, planned.node.name);
                return self.fail(id, Error::internal(message));
            }
            // SAFETY: this thread runs the producer, and counts down the consumer only below.
            unsafe { self.state.put(edge.slot, value) };
        }
        empty(&mut local.outputs);
        local.alone = self.is_alone();
        for successor in plan.successors(planned) {
            let to = successor.node();
            if successor.waits_for_one() || self.state.count_down(to, local.alone) {
                self.make_ready(to, local);
            }
        }
    }
}
