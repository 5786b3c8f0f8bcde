//! Segments: kernels that are scheduled together and can be replayed as one graph. They are selected by
//! [`segment_selection`](super::segment_selection).

use super::action::Action;
use super::flow::Flow;
use super::run::{Run, ThreadState};
use super::state::discard_all;
use device::Device;
use device::kernel::{Kernel, KernelContext};
use device::segment_runner::{Access, SegmentRunner};
use device::value::Value;
use device::{Error, Result};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Instant;

/// Kernels that run one after another. The inputs of each kernel are in the slots of its node.
pub(super) struct Segment {
    pub(super) kernels: Vec<SegmentKernel>,
    pub(super) inputs: Vec<SegmentInput>,
    pub(super) outputs: usize,
    pub(super) runner: Box<dyn SegmentRunner>,
}

/// A kernel of a segment, by the number of its node, and the deliveries of the kernel's outputs.
pub(super) struct SegmentKernel {
    pub(super) node: u32,
    pub(super) deliveries: SmallVec<[Delivery; 2]>,
}

/// The delivery of a kernel's output to one consumer. The deliveries of one output are adjacent.
#[derive(Clone, Copy)]
pub(super) struct Delivery {
    pub(super) output: u32,
    pub(super) to: DeliveryTarget,
    pub(super) is_last: bool,
}

/// The consumer to which a kernel's output is delivered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveryTarget {
    /// The input slot of another kernel of the segment.
    Slot(u32),
    /// The segment's output with this number.
    Outside(u32),
}

impl Delivery {
    /// Returns the number of the segment's output to which this delivery passes the kernel's output `output`; `None` if
    /// the delivery goes to another kernel of the segment or is of another output.
    pub(super) fn leaves_as(&self, output: u32) -> Option<u32> {
        match self.to {
            DeliveryTarget::Outside(number) if self.output == output => Some(number),
            _ => None,
        }
    }
}

/// An input of the segment: the slots of all kernels that take one value from outside the segment in the same memory,
/// and the access of these kernels to the value.
pub(super) struct SegmentInput {
    pub(super) slots: SmallVec<[u32; 2]>,
    pub(super) access: Access,
}

impl Segment {
    /// Returns the node of the first kernel, which names the segment in messages.
    pub(super) fn first(&self) -> u32 {
        self.kernels.first().map_or(0, |kernel| kernel.node)
    }

    fn input_slots(&self) -> impl Iterator<Item = usize> {
        self.inputs.iter().flat_map(|input| input.slots.iter().map(|&slot| slot as usize))
    }
}

impl<F: Flow> Run<F> {
    /// Runs a segment whose inputs are available. Traced steps run the kernels one by one.
    pub(super) fn run_segment(
        self: &Arc<Run<F>>,
        task: F::Task,
        segment: &Segment,
        local: &mut ThreadState<F>,
    ) {
        let Some(task) = self.place(task, segment.input_slots(), local) else { return };
        let id = F::node(&task);
        let started = self.measures.then(Instant::now);
        let inputs = self.take_inputs(&task, segment);
        // An error names the kernel that runs, or the segment's first kernel if the segment is replayed.
        local.current = segment.first();
        let current = &mut local.current;
        let mut run_kernels = |device: &Arc<Device>, inputs: Vec<Value>| {
            let result = self.run_kernels(&task, segment, device, inputs, current);
            if result.is_err() {
                self.clear_segment(&task, segment);
            }
            result
        };
        let device = &self.executor.device;
        let result = match &self.recorder {
            Some(_) => run_kernels(device, inputs),
            None => segment.runner.run(device, inputs, &mut run_kernels),
        };
        if let Some(started) = started {
            self.executor.record_cost(id, started.elapsed().as_nanos() as u64);
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

    /// Drops the inputs of a segment that does not run.
    pub(super) fn clear_segment(&self, task: &F::Task, segment: &Segment) {
        let plan = &self.executor.plan;
        for kernel in &segment.kernels {
            let slots = plan.slots(&plan.nodes[kernel.node as usize]);
            // SAFETY: the owner of the segment's task owns the slots of its kernels, none of which runs.
            discard_all(unsafe { self.flow.inputs(task, slots) });
        }
    }

    /// Takes the values of the segment's inputs out of the slots.
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
        // SAFETY: this thread owns the segment's task, whose slots have all been filled; no other borrow exists.
        unsafe { self.flow.inputs(task, slot..slot + 1) }.first_mut().map(std::mem::take).unwrap_or_default()
    }

    fn put(&self, task: &F::Task, slot: u32, value: Value) {
        let slot = slot as usize;
        // SAFETY: this thread runs the producer of the slot's value; the consumer's count is decremented, or the
        // consumer run, only later.
        if let [input] = unsafe { self.flow.inputs(task, slot..slot + 1) } {
            *input = value;
        }
    }

    /// Puts a value into each of the slots.
    fn put_in_all(&self, task: &F::Task, slots: &[u32], value: Value) {
        if let Some((&last, others)) = slots.split_last() {
            for &slot in others {
                self.put(task, slot, value.clone());
            }
            self.put(task, last, value);
        }
    }

    /// Runs the kernels one by one, and sets `current` to the node of the running kernel.
    fn run_kernels(
        &self,
        task: &F::Task,
        segment: &Segment,
        device: &Arc<Device>,
        inputs: Vec<Value>,
        current: &mut u32,
    ) -> Result<Vec<Value>> {
        for (input, value) in segment.inputs.iter().zip(inputs) {
            self.put_in_all(task, &input.slots, value);
        }
        let mut segment_outputs = vec![Value::None; segment.outputs];
        let mut outputs = SmallVec::new();
        for kernel in &segment.kernels {
            *current = kernel.node;
            self.run_kernel(task, kernel.node, device, &mut outputs)?;
            for delivery in &kernel.deliveries {
                let output = outputs.get_mut(delivery.output as usize);
                let value = match output {
                    Some(output) if delivery.is_last => std::mem::take(output),
                    Some(output) => output.clone(),
                    None => Value::None,
                };
                if matches!(value, Value::None) {
                    return Err(self.executor.plan.missing_output_error(kernel.node, delivery.output));
                }
                match delivery.to {
                    DeliveryTarget::Slot(slot) => self.put(task, slot, value),
                    DeliveryTarget::Outside(output) => segment_outputs[output as usize] = value,
                }
            }
            discard_all(&mut outputs);
        }
        Ok(segment_outputs)
    }

    fn run_kernel(
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
        // SAFETY: this thread runs the segment; the segment's earlier kernels have filled the slots, and have no borrow
        // of them.
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
        discard_all(inputs);
        if let (Some(recorder), Some(started), Ok(())) = (&self.recorder, started, &result) {
            recorder.record(plan, id, started, outputs);
        }
        result
    }
}
