//! A captured segment: the CUDA graph, its memory, and the locations of its inputs and outputs.

use super::arena::Arena;
use super::capture::Graph;
use super::gpu_engine::{Engine, block, block_of};
use super::kernel_stream::KernelStream;
use super::memory::BlockId;
use super::segment_variables::{LockedValues, SegmentVariables};
use device::segment_runner::{Access, RunKernels};
use device::value::Value;
use device::{Device, DeviceMemory, DeviceTensor};
use device::{Error, Result};
use graph::{DType, Shape};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// A CUDA graph of a segment, valid for inputs with the shapes of the captured inputs; inputs in host memory
/// must also have the captured values.
#[derive(Debug)]
pub(super) struct CapturedSegment {
    graph: Graph,
    /// The name of the graph in out-of-memory messages.
    name: Arc<str>,
    inputs: Vec<InputLocation>,
    outputs: Vec<OutputSource>,
    output_memory: Vec<OutputMemory>,
}

/// The memory from which the graph reads one input of the segment.
#[derive(Debug)]
enum InputLocation {
    /// Memory in the graph's arena, into which the input is copied before each launch.
    Copied(DeviceTensor),
    /// The input's own memory, the block with this id: the input is not copied, but a replay needs it in the
    /// same block.
    InPlace(BlockId),
    /// The memory that holds the value of the variable to which the input refers.
    Variable { id: BlockId, dtype: DType, shape: Shape },
    /// A value in host memory that is fixed in the graph: a run with another value needs another graph.
    Constant,
}

/// The source of an output's value after a launch.
#[derive(Debug)]
enum OutputSource {
    /// Memory that the graph writes, by its index in `CapturedSegment::output_memory`.
    GraphMemory { number: usize, dtype: DType, shape: Shape },
    /// The memory of the input of this index, seen as a tensor of this dtype and shape.
    Input { input: usize, dtype: DType, shape: Shape },
    /// The variable reference that is the segment's input of this index.
    Reference { input: usize },
    /// The value, after the launch, of the variable that an input refers to.
    VariableValue { input: usize, dtype: DType, shape: Shape },
    /// A value that is the same in each run.
    Constant(Value),
}

/// Memory that the graph writes and that holds one or more outputs.
#[derive(Debug)]
struct OutputMemory {
    memory: Arc<dyn DeviceMemory>,
    /// True if outputs are copied out of the memory. Otherwise outputs are in this memory, and the graph is not
    /// launched again until all of them are dropped.
    is_copied: bool,
}

/// The result of an attempt to launch the graph.
#[derive(Debug)]
pub(super) enum ReplayOutcome {
    Done(Vec<Value>),
    /// Not launched: an output of the last launch, or a snapshot of a variable that the graph changes, is still
    /// alive.
    Busy,
    /// Not launched: an input or a variable is in other memory than during the capture.
    Moved,
}

impl CapturedSegment {
    /// Captures the kernels that `run_kernels` enqueues for `inputs`; `unmoved[i]` is set if input `i` is in the same
    /// memory as in the run before. The capture runs no kernel.
    ///
    /// # Errors
    /// The errors of `run_kernels` and of the driver; `ResourceExhausted` if there is not enough memory.
    pub(super) fn new(
        engine: &Arc<Engine>,
        name: Arc<str>,
        device: &Arc<Device>,
        inputs: &[Value],
        unmoved: &[bool],
        variables: &SegmentVariables,
        run_kernels: &mut RunKernels<'_>,
    ) -> Result<CapturedSegment> {
        let arena = Arena::new(engine.clone(), name.clone());
        let mut locations = Vec::with_capacity(inputs.len());
        // The values that the captured kernels get in place of the segment's inputs.
        let mut captured_inputs = Vec::with_capacity(inputs.len());
        {
            let values = variables.lock();
            let changed: FxHashSet<BlockId> = variables
                .changed_values(&values)
                .map(|value| Ok(block(value)?.id()))
                .collect::<Result<_>>()?;
            for (i, input) in inputs.iter().enumerate() {
                let (location, captured_input) = match (input, variables.index_of(i)) {
                    (_, Some(at)) => (variable_location(values[at].as_ref())?, input.clone()),
                    (Value::Device(tensor), None) if !tensor.memory.is_empty() => {
                        input_location(&arena, tensor, unmoved[i], &changed)?
                    }
                    _ => (InputLocation::Constant, input.clone()),
                };
                locations.push(location);
                captured_inputs.push(captured_input);
            }
        }
        let (graph, values) =
            Graph::capture(device, &arena, |device| run_kernels(device, captured_inputs.clone()))?;
        arena.close();
        let mut captured = CapturedSegment {
            graph,
            name,
            inputs: locations,
            outputs: Vec::new(),
            output_memory: Vec::new(),
        };
        for value in values {
            let output = captured.output_source(value, &captured_inputs)?;
            captured.outputs.push(output);
        }
        Ok(captured)
    }

    /// Returns the source of an output's value after a launch; `value` is the output that the captured kernels
    /// returned.
    fn output_source(&mut self, value: Value, captured_inputs: &[Value]) -> Result<OutputSource> {
        let DeviceTensor { dtype, shape, memory } = match value {
            Value::Device(tensor) if !tensor.memory.is_empty() => tensor,
            Value::Ref(variable) => {
                let is_it =
                    |input: &Value| matches!(input, Value::Ref(known) if Arc::ptr_eq(known, &variable));
                let input = captured_inputs.iter().position(is_it);
                let input = input
                    .ok_or_else(|| unsupported_output("a reference to a variable that it was not given"))?;
                return Ok(OutputSource::Reference { input });
            }
            Value::View(_) => return Err(unsupported_output("a view of a variable")),
            value => return Ok(OutputSource::Constant(value)),
        };
        let is_it = |input: &Value| match input {
            Value::Device(known) => Arc::ptr_eq(&known.memory, &memory),
            _ => false,
        };
        if let Some(input) = captured_inputs.iter().position(is_it) {
            return Ok(OutputSource::Input { input, dtype, shape });
        }
        let of = block_of(&memory)?;
        let is_value =
            |at: &InputLocation| matches!(at, InputLocation::Variable { id, .. } if *id == of.id());
        if let Some(input) = self.inputs.iter().position(is_value) {
            return Ok(OutputSource::VariableValue { input, dtype, shape });
        }
        if !of.is_graph_memory() {
            // Memory that is neither an input's nor the graph's is the memory of a constant, which no kernel
            // writes.
            return Ok(OutputSource::Constant(DeviceTensor { dtype, shape, memory }.into()));
        }
        let known = self.output_memory.iter().position(|output| Arc::ptr_eq(&output.memory, &memory));
        let number = known.unwrap_or(self.output_memory.len());
        if known.is_none() {
            self.output_memory.push(OutputMemory { memory, is_copied: false });
        }
        Ok(OutputSource::GraphMemory { number, dtype, shape })
    }

    /// Launches the graph for `inputs`, which must have the shapes of the captured inputs. Does not launch it
    /// if an output of an earlier launch is still alive, or if an input or variable is in other memory than
    /// during the capture; see [`ReplayOutcome`].
    ///
    /// # Errors
    /// The errors of the driver; `ResourceExhausted` if there is not enough memory for the copy of an output.
    pub(super) fn replay(
        &mut self,
        engine: &Arc<Engine>,
        inputs: &[Value],
        variables: &SegmentVariables,
    ) -> Result<ReplayOutcome> {
        let values = variables.lock();
        if !self.has_unmoved_inputs(inputs, variables, &values)? {
            return Ok(ReplayOutcome::Moved);
        }
        if !self.try_reclaim_outputs() || !variables.may_change(&values, inputs) {
            return Ok(ReplayOutcome::Busy);
        }
        let stream = KernelStream::compute(engine);
        for (location, input) in self.inputs.iter().zip(inputs) {
            match (location, input) {
                (InputLocation::Copied(own), Value::Device(input)) => stream.copy(own, input)?,
                (InputLocation::InPlace(_), Value::Device(input)) => {
                    block(input)?.read()?;
                }
                _ => {}
            }
        }
        for (at, value) in values.iter().enumerate() {
            let Some(value) = &**value else { continue };
            match variables.access(at) {
                Access::Reads => block(value)?.read()?,
                Access::Changes => block(value)?.write()?,
            };
        }
        for output in &self.output_memory {
            block_of(&output.memory)?.write()?;
        }
        self.graph.launch()?;
        let output_value = |output| self.output_value(&stream, output, inputs, variables, &values);
        Ok(ReplayOutcome::Done(self.outputs.iter().map(output_value).collect::<Result<_>>()?))
    }

    /// Returns the number of tensors, inputs and outputs, that each launch copies into or out of the graph's
    /// memory.
    pub(super) fn copies(&self) -> usize {
        let copied_in =
            self.inputs.iter().filter(|location| matches!(location, InputLocation::Copied(_))).count();
        copied_in + self.output_memory.iter().filter(|output| output.is_copied).count()
    }

    /// Returns whether all inputs and variables that the graph reads in place are in the same memory as during
    /// the capture.
    fn has_unmoved_inputs(
        &self,
        inputs: &[Value],
        variables: &SegmentVariables,
        values: &LockedValues<'_>,
    ) -> Result<bool> {
        for (i, (location, input)) in self.inputs.iter().zip(inputs).enumerate() {
            let is_unmoved = match location {
                InputLocation::Copied(_) | InputLocation::Constant => true,
                InputLocation::InPlace(id) => match input {
                    Value::Device(input) => block(input)?.id() == *id,
                    _ => false,
                },
                InputLocation::Variable { id, dtype, shape } => {
                    match variables.index_of(i).and_then(|at| values[at].as_ref()) {
                        Some(value) => {
                            block(value)?.id() == *id && value.dtype == *dtype && value.shape == *shape
                        }
                        None => false,
                    }
                }
            };
            if !is_unmoved {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether all outputs of the last launch are dropped. Outputs that are still alive are marked to
    /// be copied out of the graph's memory after later launches, because their holder will probably keep them
    /// in later runs too.
    fn try_reclaim_outputs(&mut self) -> bool {
        let mut are_free = true;
        for output in &mut self.output_memory {
            if Arc::get_mut(&mut output.memory).is_none() {
                output.is_copied = true;
                are_free = false;
            }
        }
        are_free
    }

    /// Returns the value of an output after a launch, copied out of the graph's memory if `is_copied` is set.
    fn output_value(
        &self,
        stream: &KernelStream<'_>,
        output: &OutputSource,
        inputs: &[Value],
        variables: &SegmentVariables,
        values: &LockedValues<'_>,
    ) -> Result<Value> {
        let missing = || Error::internal("an output of a captured graph is an input that it did not receive");
        Ok(match output {
            OutputSource::GraphMemory { number, dtype, shape } => {
                let OutputMemory { memory, is_copied } = &self.output_memory[*number];
                let own = DeviceTensor { dtype: *dtype, shape: shape.clone(), memory: memory.clone() };
                match is_copied {
                    false => own.into(),
                    true => {
                        let copy = stream.allocate(&self.name, *dtype, shape.clone())?;
                        stream.copy(&copy, &own)?;
                        copy.into()
                    }
                }
            }
            OutputSource::Input { input, dtype, shape } => match &inputs[*input] {
                Value::Device(DeviceTensor { memory, .. }) => {
                    DeviceTensor { dtype: *dtype, shape: shape.clone(), memory: memory.clone() }.into()
                }
                _ => return Err(missing()),
            },
            OutputSource::Reference { input } => inputs[*input].clone(),
            OutputSource::VariableValue { input, dtype, shape } => {
                let value =
                    variables.index_of(*input).and_then(|at| values[at].clone()).ok_or_else(missing)?;
                DeviceTensor { dtype: *dtype, shape: shape.clone(), ..value }.into()
            }
            OutputSource::Constant(value) => value.clone(),
        })
    }
}

/// Returns the memory from which the graph reads a variable's value.
fn variable_location(value: Option<&DeviceTensor>) -> Result<InputLocation> {
    let value = value.ok_or_else(|| unsupported_output("an output made from a variable without a value"))?;
    Ok(InputLocation::Variable { id: block(value)?.id(), dtype: value.dtype, shape: value.shape.clone() })
}

/// Chooses the memory from which the graph reads an input, and returns it with the value that captured kernels
/// get for that input. The graph reads the input in place if `is_unmoved` is set, if the input is in the memory
/// of another graph, or if it is the value of a variable that this graph changes; other inputs are copied.
fn input_location(
    arena: &Arc<Arena>,
    input: &DeviceTensor,
    is_unmoved: bool,
    changed: &FxHashSet<BlockId>,
) -> Result<(InputLocation, Value)> {
    let of = block(input)?;
    Ok(if changed.contains(&of.id()) {
        (InputLocation::InPlace(of.id()), arena.snapshot(input)?.into())
    } else if is_unmoved || of.is_graph_memory() {
        (InputLocation::InPlace(of.id()), input.clone().into())
    } else {
        let own = arena.allocate(input.dtype, input.shape.clone())?;
        (InputLocation::Copied(own.clone()), own.into())
    })
}

/// Returns the error for an output that a captured graph cannot return.
fn unsupported_output(description: &str) -> Error {
    Error::new(graph::Code::FailedPrecondition, format!("a captured graph cannot give {description}"))
}
