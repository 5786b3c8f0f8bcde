//! A segment of a partition: kernels that are scheduled as one, and so can be repeated as one. Which they are,
//! [`segments`](super::segments) decides.

use super::action::Action;
use super::flow::Flow;
use super::run::{Local, Run};
use super::state::empty;
use device::Device;
use device::kernel::{Kernel, KernelContext};
use device::repeat::{Access, Repeater};
use device::value::Value;
use device::{Error, Result};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Instant;

/// Kernels that run one after another. Their inputs are in the slots that they have among all nodes.
pub(super) struct Segment {
    pub(super) kernels: Vec<Member>,
    pub(super) inputs: Vec<Input>,
    pub(super) outputs: usize,
    pub(super) repeater: Box<dyn Repeater>,
}

pub(super) struct Member {
    pub(super) node: u32,
    pub(super) deliveries: SmallVec<[Delivery; 2]>,
}

/// Where an output of a kernel goes; those of one output are adjacent.
#[derive(Clone, Copy)]
pub(super) struct Delivery {
    pub(super) output: u32,
    pub(super) to: To,
    pub(super) is_last: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// An input of another kernel of the segment.
    Slot(u32),
    /// An output of the segment.
    Outside(u32),
}

impl Delivery {
    /// As which of the segment's outputs this one leaves it, if that is where it goes.
    pub(super) fn leaves_as(&self, output: u32) -> Option<u32> {
        match self.to {
            To::Outside(number) if self.output == output => Some(number),
            _ => None,
        }
    }
}

/// One value from outside in one memory, and the slots of all who take it there.
pub(super) struct Input {
    pub(super) slots: SmallVec<[u32; 2]>,
    pub(super) access: Access,
}

impl Segment {
    /// The segment's first kernel stands for it in messages.
    pub(super) fn first(&self) -> u32 {
        self.kernels.first().map_or(0, |member| member.node)
    }

    fn input_slots(&self) -> impl Iterator<Item = usize> {
        self.inputs.iter().flat_map(|input| input.slots.iter().map(|&slot| slot as usize))
    }
}

impl<F: Flow> Run<F> {
    /// Runs a segment whose inputs have come. Steps that are traced run its kernels one by one.
    pub(super) fn run_segment(self: &Arc<Run<F>>, task: F::Task, segment: &Segment, local: &mut Local<F>) {
        let Some(task) = self.place(task, segment.input_slots(), local) else { return };
        let id = F::node(&task);
        let started = self.measures.then(Instant::now);
        let inputs = self.take_inputs(&task, segment);
        // What fails from here on is named by the kernel that runs, if one does.
        local.current = segment.first();
        let current = &mut local.current;
        let mut walk = |device: &Arc<Device>, inputs: Vec<Value>| {
            let walked = self.walk(&task, segment, device, inputs, current);
            if walked.is_err() {
                self.clear_segment(&task, segment);
            }
            walked
        };
        let device = &self.executor.device;
        let result = match &self.recorder {
            Some(_) => walk(device, inputs),
            None => segment.repeater.run(device, inputs, &mut walk),
        };
        if let Some(started) = started {
            self.executor.learn(id, started.elapsed().as_nanos() as u64);
        }
        match result {
            Ok(outputs) => {
                let planned = &self.executor.plan.nodes[id as usize];
                for (to, output) in local.outputs_of(planned).iter_mut().zip(outputs) {
                    *to = output;
                }
                F::deliver(self, task, None, local);
            }
            Err(error) => self.fail(local.current, error),
        }
    }

    /// Drops what a segment was given, as it will not run.
    pub(super) fn clear_segment(&self, task: &F::Task, segment: &Segment) {
        let plan = &self.executor.plan;
        for member in &segment.kernels {
            let slots = plan.slots(&plan.nodes[member.node as usize]);
            // SAFETY: who has the segment's task has the slots of its kernels, none of which runs.
            empty(unsafe { self.flow.inputs(task, slots) });
        }
    }

    /// The values of the segment's inputs, each once a memory.
    fn take_inputs(&self, task: &F::Task, segment: &Segment) -> Vec<Value> {
        let mut values = Vec::with_capacity(segment.inputs.len());
        for input in &segment.inputs {
            let mut value = Value::None;
            for &slot in &input.slots {
                value = self.take(task, slot);
            }
            values.push(value);
        }
        values
    }

    fn take(&self, task: &F::Task, slot: u32) -> Value {
        let slot = slot as usize;
        // SAFETY: this thread has the segment's task, whose slots have all been filled; no other borrow is left.
        unsafe { self.flow.inputs(task, slot..slot + 1) }.first_mut().map(std::mem::take).unwrap_or_default()
    }

    fn put(&self, task: &F::Task, slot: u32, value: Value) {
        let slot = slot as usize;
        // SAFETY: this thread runs the slot's producer, and its consumer is counted down, or run, only later.
        if let [input] = unsafe { self.flow.inputs(task, slot..slot + 1) } {
            *input = value;
        }
    }

    /// Puts a value into each of some slots.
    fn spread(&self, task: &F::Task, slots: &[u32], value: Value) {
        if let Some((&last, others)) = slots.split_last() {
            for &slot in others {
                self.put(task, slot, value.clone());
            }
            self.put(task, last, value);
        }
    }

    /// Runs the kernels one by one; `current` is the one that runs.
    fn walk(
        &self,
        task: &F::Task,
        segment: &Segment,
        device: &Arc<Device>,
        inputs: Vec<Value>,
        current: &mut u32,
    ) -> Result<Vec<Value>> {
        for (input, value) in segment.inputs.iter().zip(inputs) {
            self.spread(task, &input.slots, value);
        }
        let mut given = vec![Value::None; segment.outputs];
        let mut outputs = SmallVec::new();
        for member in &segment.kernels {
            *current = member.node;
            self.run_member(task, member.node, device, &mut outputs)?;
            for delivery in &member.deliveries {
                let output = outputs.get_mut(delivery.output as usize);
                let value = match output {
                    Some(output) if delivery.is_last => std::mem::take(output),
                    Some(output) => output.clone(),
                    None => Value::None,
                };
                if matches!(value, Value::None) {
                    return Err(self.executor.plan.missing(member.node, delivery.output));
                }
                match delivery.to {
                    To::Slot(slot) => self.put(task, slot, value),
                    To::Outside(output) => given[output as usize] = value,
                }
            }
            empty(&mut outputs);
        }
        Ok(given)
    }

    fn run_member(
        &self,
        task: &F::Task,
        id: u32,
        device: &Arc<Device>,
        outputs: &mut SmallVec<[Value; 4]>,
    ) -> Result<()> {
        let plan = &self.executor.plan;
        let planned = &plan.nodes[id as usize];
        let started = self.recorder.as_ref().map(|recorder| {
            recorder.scheduled(id);
            Instant::now()
        });
        // SAFETY: this thread runs the segment; the kernels before have filled the slots, and hold no borrow of them.
        let inputs = unsafe { self.flow.inputs(task, plan.slots(planned)) };
        plan.fill_constants(planned, inputs);
        if planned.has_refs {
            self.dereference(planned, inputs)?;
        }
        let Action::Kernel(kernel) = &planned.action else {
            return Err(Error::internal("a segment has a node without a kernel"));
        };
        let Kernel::Sync(compute) = &**kernel else {
            return Err(Error::internal("a segment has a kernel that answers later"));
        };
        outputs.resize_with(planned.outputs as usize, Value::default);
        let mut ctx = KernelContext { node: &planned.node, device, step: &self.step, inputs, outputs };
        let result = compute(&mut ctx);
        empty(inputs);
        if let (Some(recorder), Some(started), Ok(())) = (&self.recorder, started, &result) {
            recorder.ran(plan, id, started, outputs);
        }
        result
    }
}
