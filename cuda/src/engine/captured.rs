//! A segment that was captured: the graph, the memory that it works in, and where it finds and leaves what.

use super::arena::Arena;
use super::capturing::Graph;
use super::engine::{Engine, block, block_of};
use super::lane::Lane;
use super::memory::BlockId;
use super::variables::{Locked, Variables};
use device::repeat::{Access, Walk};
use device::value::Value;
use device::{Device, DeviceMemory, DeviceTensor};
use device::{Error, Result};
use graph::{DType, Shape};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// A graph that may be launched for inputs of the same shapes, and the same values in host memory.
#[derive(Debug)]
pub(super) struct Captured {
    graph: Graph,
    /// Who asks for memory, in messages.
    name: Arc<str>,
    inputs: Vec<Place>,
    outputs: Vec<Given>,
    made: Vec<Made>,
}

/// Where the graph finds an input.
#[derive(Debug)]
enum Place {
    /// In memory of its own, into which the input is copied.
    Copied(DeviceTensor),
    /// Where it was in the run before, and when the graph was captured: no copy is needed.
    There(BlockId),
    /// A variable's value.
    Variable { id: BlockId, dtype: DType, shape: Shape },
    /// It is in the graph itself: nothing else was captured for.
    Known,
}

/// What an output is.
#[derive(Debug)]
enum Given {
    /// In memory of the graph's own, by its number.
    Made { number: usize, dtype: DType, shape: Shape },
    /// An input's elements, taken as these.
    Passed { input: usize, dtype: DType, shape: Shape },
    /// The reference that is an input.
    Reference { input: usize },
    /// The elements of the variable that an input leads to, when the graph has run.
    Snapshot { input: usize, dtype: DType, shape: Shape },
    /// The same in every run.
    Same(Value),
}

/// Memory of an output.
#[derive(Debug)]
struct Made {
    memory: Arc<dyn DeviceMemory>,
    /// Whether outputs are copied out of it. Else they lie in it, and the graph does not run before all are dropped.
    is_copied: bool,
}

/// What came of an attempt to run the graph.
#[derive(Debug)]
pub(super) enum Outcome {
    Done(Vec<Value>),
    /// Somebody holds an output of the last run, or a snapshot of a variable. Nothing has run.
    Busy,
    /// An input or a variable is elsewhere than when the graph was captured. Nothing has run.
    Moved,
}

impl Captured {
    /// Captures what `walk` enqueues for these inputs, those of which that are marked in `stay` lie where they did
    /// before. Nothing runs yet.
    ///
    /// # Errors
    /// Those of `walk`, and the driver's; `ResourceExhausted`.
    pub(super) fn new(
        engine: &Arc<Engine>,
        name: Arc<str>,
        device: &Arc<Device>,
        inputs: &[Value],
        stay: &[bool],
        variables: &Variables,
        walk: &mut Walk<'_>,
    ) -> Result<Captured> {
        let arena = Arena::new(engine.clone(), name.clone());
        let mut places = Vec::with_capacity(inputs.len());
        // What the kernels are given in place of the inputs.
        let mut stand_ins = Vec::with_capacity(inputs.len());
        {
            let values = variables.lock();
            let changed: FxHashSet<BlockId> =
                variables.changed(&values).map(|value| Ok(block(value)?.id())).collect::<Result<_>>()?;
            for (i, input) in inputs.iter().enumerate() {
                let (place, stand_in) = match (input, variables.place(i)) {
                    (_, Some(at)) => (variable(values[at].as_ref())?, input.clone()),
                    (Value::Device(tensor), None) if !tensor.memory.is_empty() => {
                        place(&arena, tensor, stay[i], &changed)?
                    }
                    _ => (Place::Known, input.clone()),
                };
                places.push(place);
                stand_ins.push(stand_in);
            }
        }
        let (graph, values) = Graph::capture(device, &arena, |device| walk(device, stand_ins.clone()))?;
        arena.close();
        let mut captured = Captured { graph, name, inputs: places, outputs: Vec::new(), made: Vec::new() };
        for value in values {
            let output = captured.output(value, &stand_ins)?;
            captured.outputs.push(output);
        }
        Ok(captured)
    }

    /// What an output is, by the value that it had when the graph was captured.
    fn output(&mut self, value: Value, stand_ins: &[Value]) -> Result<Given> {
        let DeviceTensor { dtype, shape, memory } = match value {
            Value::Device(tensor) if !tensor.memory.is_empty() => tensor,
            Value::Ref(variable) => {
                let is_it =
                    |input: &Value| matches!(input, Value::Ref(known) if Arc::ptr_eq(known, &variable));
                let input = stand_ins.iter().position(is_it);
                let input = input.ok_or_else(|| unfit("a reference to a variable that it was not given"))?;
                return Ok(Given::Reference { input });
            }
            Value::View(_) => return Err(unfit("a view of a variable")),
            value => return Ok(Given::Same(value)),
        };
        let is_it = |input: &Value| match input {
            Value::Device(known) => Arc::ptr_eq(&known.memory, &memory),
            _ => false,
        };
        if let Some(input) = stand_ins.iter().position(is_it) {
            return Ok(Given::Passed { input, dtype, shape });
        }
        let of = block_of(&memory)?;
        let is_value = |place: &Place| matches!(place, Place::Variable { id, .. } if *id == of.id());
        if let Some(input) = self.inputs.iter().position(is_value) {
            return Ok(Given::Snapshot { input, dtype, shape });
        }
        if !of.is_of_graph() {
            // A constant's memory, which nobody writes.
            return Ok(Given::Same(DeviceTensor { dtype, shape, memory }.into()));
        }
        let known = self.made.iter().position(|made| Arc::ptr_eq(&made.memory, &memory));
        let number = known.unwrap_or(self.made.len());
        if known.is_none() {
            self.made.push(Made { memory, is_copied: false });
        }
        Ok(Given::Made { number, dtype, shape })
    }

    /// Enqueues the graph for these inputs, which are of the shapes that it was captured for, if it may run now.
    ///
    /// # Errors
    /// The driver's; `ResourceExhausted` for the copy of an output.
    pub(super) fn repeat(
        &mut self,
        engine: &Arc<Engine>,
        inputs: &[Value],
        variables: &Variables,
    ) -> Result<Outcome> {
        let values = variables.lock();
        if !self.finds(inputs, variables, &values)? {
            return Ok(Outcome::Moved);
        }
        if !self.has_its_outputs() || !variables.may_change(&values, inputs) {
            return Ok(Outcome::Busy);
        }
        let lane = Lane::to(engine);
        for (place, input) in self.inputs.iter().zip(inputs) {
            match (place, input) {
                (Place::Copied(own), Value::Device(input)) => lane.copy(own, input)?,
                (Place::There(_), Value::Device(input)) => {
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
        for made in &self.made {
            block_of(&made.memory)?.write()?;
        }
        self.graph.launch()?;
        let give = |output| self.give(&lane, output, inputs, variables, &values);
        Ok(Outcome::Done(self.outputs.iter().map(give).collect::<Result<_>>()?))
    }

    /// How many copies a run makes, in and out.
    pub(super) fn copies(&self) -> usize {
        let copied_in = self.inputs.iter().filter(|place| matches!(place, Place::Copied(_))).count();
        copied_in + self.made.iter().filter(|made| made.is_copied).count()
    }

    /// Whether everything is where the graph looks for it.
    fn finds(&self, inputs: &[Value], variables: &Variables, values: &Locked<'_>) -> Result<bool> {
        for (i, (place, input)) in self.inputs.iter().zip(inputs).enumerate() {
            let is_there = match place {
                Place::Copied(_) | Place::Known => true,
                Place::There(id) => match input {
                    Value::Device(input) => block(input)?.id() == *id,
                    _ => false,
                },
                Place::Variable { id, dtype, shape } => {
                    match variables.place(i).and_then(|at| values[at].as_ref()) {
                        Some(value) => {
                            block(value)?.id() == *id && value.dtype == *dtype && value.shape == *shape
                        }
                        None => false,
                    }
                }
            };
            if !is_there {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether nobody holds what the last run gave. What is held until the next run is copied out from then on, for
    /// whoever holds it may do so again.
    fn has_its_outputs(&mut self) -> bool {
        let mut are_free = true;
        for made in &mut self.made {
            if Arc::get_mut(&mut made.memory).is_none() {
                made.is_copied = true;
                are_free = false;
            }
        }
        are_free
    }

    fn give(
        &self,
        lane: &Lane<'_>,
        output: &Given,
        inputs: &[Value],
        variables: &Variables,
        values: &Locked<'_>,
    ) -> Result<Value> {
        let lost = || Error::internal("a captured graph gives what it was not given");
        Ok(match output {
            Given::Made { number, dtype, shape } => {
                let Made { memory, is_copied } = &self.made[*number];
                let own = DeviceTensor { dtype: *dtype, shape: shape.clone(), memory: memory.clone() };
                match is_copied {
                    false => own.into(),
                    true => {
                        let copy = lane.allocate(&self.name, *dtype, shape.clone())?;
                        lane.copy(&copy, &own)?;
                        copy.into()
                    }
                }
            }
            Given::Passed { input, dtype, shape } => match &inputs[*input] {
                Value::Device(DeviceTensor { memory, .. }) => {
                    DeviceTensor { dtype: *dtype, shape: shape.clone(), memory: memory.clone() }.into()
                }
                _ => return Err(lost()),
            },
            Given::Reference { input } => inputs[*input].clone(),
            Given::Snapshot { input, dtype, shape } => {
                let value = variables.place(*input).and_then(|at| values[at].clone()).ok_or_else(lost)?;
                DeviceTensor { dtype: *dtype, shape: shape.clone(), ..value }.into()
            }
            Given::Same(value) => value.clone(),
        })
    }
}

/// Where a graph will find a variable's value.
fn variable(value: Option<&DeviceTensor>) -> Result<Place> {
    let value = value.ok_or_else(|| unfit("what it makes of a variable without a value"))?;
    Ok(Place::Variable { id: block(value)?.id(), dtype: value.dtype, shape: value.shape.clone() })
}

/// Where a graph will find an input, and what it is captured with. The memory of another graph stays where it is, and so
/// does the value of a variable that this one changes.
fn place(
    arena: &Arc<Arena>,
    input: &DeviceTensor,
    stays: bool,
    changed: &FxHashSet<BlockId>,
) -> Result<(Place, Value)> {
    let of = block(input)?;
    Ok(if changed.contains(&of.id()) {
        (Place::There(of.id()), arena.snapshot(input)?.into())
    } else if stays || of.is_of_graph() {
        (Place::There(of.id()), input.clone().into())
    } else {
        let own = arena.allocate(input.dtype, input.shape.clone())?;
        (Place::Copied(own.clone()), own.into())
    })
}

fn unfit(what: &str) -> Error {
    Error::new(graph::Code::FailedPrecondition, format!("a captured graph cannot give {what}"))
}
