//! Runs a segment in each step: kernel by kernel until it is captured, and as a CUDA graph from then on.

use super::captured_segment::{CapturedSegment, ReplayOutcome};
use super::gpu_engine::{Engine, block};
use super::graph_cache::{GraphCache, ReplayDecision};
use super::memory::{Block, BlockId};
use super::segment_variables::SegmentVariables;
use device::Device;
use device::handle::HandleInput;
use device::segment_runner::{RunKernels, SegmentInfo, SegmentRunner};
use device::value::Value;
use device::variable::Variable;
use device::{Error, Result};
use graph::{DType, Shape, Tensor};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// Runs one segment of a partition in each step, and captures and replays it.
pub(super) struct GraphSegmentRunner {
    engine: Arc<Engine>,
    segment: SegmentInfo,
    /// The variable of each input that is a resource handle, cached.
    handles: Vec<HandleInput<Variable>>,
    /// Locked while a step enqueues the segment, not while the GPU runs it.
    state: Mutex<SegmentRunnerState>,
}

/// The state of a segment's repeated runs.
struct SegmentRunnerState {
    cache: GraphCache<Signature, CapturedSegment>,
    /// The memory block of each input in the last run.
    blocks: Vec<Option<BlockId>>,
}

impl SegmentRunnerState {
    /// Records the memory block of each input, and returns for each input whether the block is the same as in
    /// the last run.
    fn unmoved_inputs(&mut self, inputs: &[Value]) -> Vec<bool> {
        let of = |input: &Value| match input {
            Value::Device(tensor) => block(tensor).ok().map(Block::id),
            _ => None,
        };
        let before = std::mem::replace(&mut self.blocks, inputs.iter().map(of).collect());
        self.blocks.iter().zip(&before).map(|(now, before)| now.is_some() && now == before).collect()
    }
}

/// The properties of a segment's inputs, except addresses, on which the enqueued kernels and their arguments
/// depend.
#[derive(Debug, PartialEq, Eq)]
struct Signature(Vec<InputSignature>);

/// The properties of one input in a [`Signature`].
#[derive(Debug, PartialEq, Eq)]
enum InputSignature {
    Device(DType, Shape),
    Host(DType, Shape, Box<[u8]>),
    Variable,
}

/// Inputs in host memory of more than this many bytes are assumed to be data that differs in each step.
const MAX_HOST_BYTES: usize = 1024;

impl Signature {
    /// Returns the signature of a segment's inputs; `None` if an input probably differs in each step.
    fn of(inputs: &[Value]) -> Option<Signature> {
        inputs.iter().map(InputSignature::of).collect::<Option<_>>().map(Signature)
    }
}

impl InputSignature {
    fn of(input: &Value) -> Option<InputSignature> {
        match input {
            Value::Device(tensor) => Some(InputSignature::Device(tensor.dtype, tensor.shape.clone())),
            Value::Host(tensor) if tensor.dtype() == DType::Resource => Some(InputSignature::Variable),
            Value::Host(tensor) => InputSignature::of_host(tensor),
            Value::Ref(_) => Some(InputSignature::Variable),
            Value::View(_) | Value::None => None,
        }
    }

    fn of_host(tensor: &Tensor) -> Option<InputSignature> {
        let bytes = tensor.bytes().ok().filter(|bytes| bytes.len() <= MAX_HOST_BYTES)?;
        Some(InputSignature::Host(tensor.dtype(), tensor.shape().clone(), bytes.into()))
    }
}

impl GraphSegmentRunner {
    /// Returns a segment runner that has not captured anything.
    pub(super) fn new(engine: Arc<Engine>, segment: SegmentInfo) -> GraphSegmentRunner {
        let handles = segment.inputs.iter().map(|_| HandleInput::default()).collect();
        let blocks = vec![None; segment.inputs.len()];
        GraphSegmentRunner {
            engine,
            segment,
            handles,
            state: Mutex::new(SegmentRunnerState { cache: GraphCache::new(), blocks }),
        }
    }

    /// Runs the segment as a graph and returns its outputs; returns `None`, without running anything, if the
    /// kernels are to be run one by one.
    fn capture_or_replay(
        &self,
        device: &Arc<Device>,
        inputs: &[Value],
        run_kernels: &mut RunKernels<'_>,
    ) -> Result<Option<Vec<Value>>> {
        // A concurrent step may be enqueueing the segment; this step then runs its kernels one by one.
        let Some(mut state) = self.state.try_lock() else { return Ok(None) };
        let Some(signature) = Signature::of(inputs) else { return Ok(None) };
        let unmoved = state.unmoved_inputs(inputs);
        let cache = &mut state.cache;
        let decision = cache.decide(signature);
        if decision == ReplayDecision::RunKernels {
            return Ok(None);
        }
        // A missing variable is reported by the kernel that uses it.
        let variables = SegmentVariables::of(inputs, &self.segment.inputs, &self.handles, device);
        let Ok(Some(variables)) = variables else { return Ok(None) };
        if decision == ReplayDecision::Capture {
            if !variables.are_ready(inputs) {
                return Ok(None);
            }
            match CapturedSegment::new(
                &self.engine,
                self.holder(),
                device,
                inputs,
                &unmoved,
                &variables,
                run_kernels,
            ) {
                Ok(captured) => cache.insert(captured),
                Err(error) => {
                    cache.stop_capturing();
                    self.log_stopped(&error);
                    return Ok(None);
                }
            }
        }
        let is_trial_over = cache.is_trial_over();
        let Some(captured) = cache.captured() else { return Ok(None) };
        // A copy costs the host as much as a kernel launch.
        if is_trial_over && captured.copies() >= self.segment.works {
            cache.reject();
            return Ok(None);
        }
        match captured.replay(&self.engine, inputs, &variables)? {
            ReplayOutcome::Done(outputs) => {
                cache.record_launch();
                Ok(Some(outputs))
            }
            ReplayOutcome::Busy => Ok(None),
            ReplayOutcome::Moved => {
                if cache.record_miss() {
                    self.log_stopped(&Error::internal("the memory of their inputs changes from run to run"));
                }
                Ok(None)
            }
        }
    }

    /// Returns the name of the segment's graph in out-of-memory messages.
    fn holder(&self) -> Arc<str> {
        let SegmentInfo { name, kernels, .. } = &self.segment;
        format!("the captured graph of {kernels} kernels from {name} on").into()
    }

    /// Logs why the segment is not captured again.
    fn log_stopped(&self, why: &Error) {
        let SegmentInfo { name, kernels, .. } = &self.segment;
        tracing::warn!(
            "the {kernels} kernels from {name} on run one by one from now on, not as a CUDA graph: {why}"
        );
    }
}

impl SegmentRunner for GraphSegmentRunner {
    fn run(
        &self,
        device: &Arc<Device>,
        inputs: Vec<Value>,
        run_kernels: &mut RunKernels<'_>,
    ) -> Result<Vec<Value>> {
        match self.capture_or_replay(device, &inputs, run_kernels)? {
            Some(outputs) => Ok(outputs),
            None => run_kernels(device, inputs),
        }
    }
}

impl fmt::Debug for GraphSegmentRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GraphSegmentRunner({} kernels from {} on)", self.segment.kernels, self.segment.name)
    }
}
