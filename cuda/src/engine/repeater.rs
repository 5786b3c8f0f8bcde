//! Runs a segment step after step: its kernels one by one, until they are captured; from then on the graph.

use super::captured::{Captured, Outcome};
use super::engine::{Engine, block};
use super::known::{Known, Turn};
use super::memory::{Block, BlockId};
use super::variables::Variables;
use device::Device;
use device::handle::HandleInput;
use device::repeat::{Repeater, SegmentInfo, Walk};
use device::value::Value;
use device::variable::Variable;
use device::{Error, Result};
use graph::{DType, Shape, Tensor};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// One segment of one partition.
pub(super) struct GraphRepeater {
    engine: Arc<Engine>,
    segment: SegmentInfo,
    /// By input, the variable that it led to last.
    handles: Vec<HandleInput<Variable>>,
    /// Locked while a step is enqueued, never while one runs.
    state: Mutex<State>,
}

struct State {
    known: Known<Signature, Captured>,
    /// By input, the memory that it was in last.
    blocks: Vec<Option<BlockId>>,
}

impl State {
    /// Notes where the inputs are, and says which of them are where they were.
    fn stay(&mut self, inputs: &[Value]) -> Vec<bool> {
        let of = |input: &Value| match input {
            Value::Device(tensor) => block(tensor).ok().map(Block::id),
            _ => None,
        };
        let before = std::mem::replace(&mut self.blocks, inputs.iter().map(of).collect());
        self.blocks.iter().zip(&before).map(|(now, before)| now.is_some() && now == before).collect()
    }
}

/// All that what a segment's kernels enqueue depends on, besides where things are.
#[derive(Debug, PartialEq, Eq)]
struct Signature(Vec<Port>);

#[derive(Debug, PartialEq, Eq)]
enum Port {
    Device(DType, Shape),
    Host(DType, Shape, Box<[u8]>),
    Variable,
}

/// Values in host memory of more bytes are taken for data, which differ in each step.
const MOST_BYTES: usize = 1024;

impl Signature {
    /// `None` if there is none, for the inputs will not come again.
    fn of(inputs: &[Value]) -> Option<Signature> {
        inputs.iter().map(Port::of).collect::<Option<_>>().map(Signature)
    }
}

impl Port {
    fn of(input: &Value) -> Option<Port> {
        match input {
            Value::Device(tensor) => Some(Port::Device(tensor.dtype, tensor.shape.clone())),
            Value::Host(tensor) if tensor.dtype() == DType::Resource => Some(Port::Variable),
            Value::Host(tensor) => Port::of_host(tensor),
            Value::Ref(_) => Some(Port::Variable),
            Value::View(_) | Value::None => None,
        }
    }

    fn of_host(tensor: &Tensor) -> Option<Port> {
        let bytes = tensor.bytes().ok().filter(|bytes| bytes.len() <= MOST_BYTES)?;
        Some(Port::Host(tensor.dtype(), tensor.shape().clone(), bytes.into()))
    }
}

impl GraphRepeater {
    pub(super) fn new(engine: Arc<Engine>, segment: SegmentInfo) -> GraphRepeater {
        let handles = segment.inputs.iter().map(|_| HandleInput::default()).collect();
        let blocks = vec![None; segment.inputs.len()];
        GraphRepeater { engine, segment, handles, state: Mutex::new(State { known: Known::new(), blocks }) }
    }

    /// The outputs, if a graph has made them; `None` if nothing has run.
    fn repeat(
        &self,
        device: &Arc<Device>,
        inputs: &[Value],
        walk: &mut Walk<'_>,
    ) -> Result<Option<Vec<Value>>> {
        // Another step may be at it: this one does not wait.
        let Some(mut state) = self.state.try_lock() else { return Ok(None) };
        let Some(signature) = Signature::of(inputs) else { return Ok(None) };
        let stay = state.stay(inputs);
        let known = &mut state.known;
        let turn = known.turn(signature);
        if turn == Turn::Walk {
            return Ok(None);
        }
        // A variable that is not there is an error of the kernel that wants it.
        let variables = Variables::of(inputs, &self.segment.inputs, &self.handles, device);
        let Ok(Some(variables)) = variables else { return Ok(None) };
        if turn == Turn::Capture {
            if !variables.are_ready(inputs) {
                return Ok(None);
            }
            match Captured::new(&self.engine, self.holder(), device, inputs, &stay, &variables, walk) {
                Ok(captured) => known.keep(captured),
                Err(error) => {
                    known.give_up();
                    self.tell(&error);
                    return Ok(None);
                }
            }
        }
        let is_tried = known.is_tried();
        let Some(captured) = known.captured() else { return Ok(None) };
        // A copy is as much work for the host as a kernel.
        if is_tried && captured.copies() >= self.segment.works {
            known.let_go();
            return Ok(None);
        }
        match captured.repeat(&self.engine, inputs, &variables)? {
            Outcome::Done(outputs) => {
                known.launched();
                Ok(Some(outputs))
            }
            Outcome::Busy => Ok(None),
            Outcome::Moved => {
                if known.missed() {
                    self.tell(&Error::internal("what they work on is elsewhere again and again"));
                }
                Ok(None)
            }
        }
    }

    /// Who holds the graph's memory, in messages.
    fn holder(&self) -> Arc<str> {
        let SegmentInfo { name, kernels, .. } = &self.segment;
        format!("the captured graph of {kernels} kernels from {name} on").into()
    }

    /// Says why the segment is not captured any more.
    fn tell(&self, why: &Error) {
        let SegmentInfo { name, kernels, .. } = &self.segment;
        tracing::warn!(
            "the {kernels} kernels from {name} on run one by one from now on, not as a CUDA graph: {why}"
        );
    }
}

impl Repeater for GraphRepeater {
    fn run(&self, device: &Arc<Device>, inputs: Vec<Value>, walk: &mut Walk<'_>) -> Result<Vec<Value>> {
        match self.repeat(device, &inputs, walk)? {
            Some(outputs) => Ok(outputs),
            None => walk(device, inputs),
        }
    }
}

impl fmt::Debug for GraphRepeater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GraphRepeater({} kernels from {} on)", self.segment.kernels, self.segment.name)
    }
}
