//! The trace of a step: the times and outputs of its nodes.

use super::action::Action;
use super::plan::Plan;
use device::activity::Activity;
use device::value::Value;
use graph::{DType, Shape};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The nodes of a traced step in the order in which they ended; empty without tracing.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub nodes: Vec<NodeTrace>,
}

/// One run of a node. Times are nanoseconds since the UNIX epoch by this host's clock.
#[derive(Clone, Debug)]
pub struct NodeTrace {
    pub node: Arc<str>,
    /// The node as text: `name = Op(input, other:1, ^control)`, and the note of its kernel, if any, in brackets.
    pub label: String,
    /// The time at which the node became ready.
    pub scheduled: u64,
    pub start: u64,
    pub end: u64,
    /// The number of the thread on which the run ended.
    pub thread: u64,
    pub outputs: Vec<OutputTrace>,
}

/// A tensor that a node produced.
#[derive(Clone, Debug)]
pub struct OutputTrace {
    pub slot: usize,
    pub dtype: DType,
    pub shape: Shape,
    pub bytes: u64,
}

/// The maximum number of runs in a trace, because a loop may have any number of iterations.
const MAX_TRACED: usize = 1 << 20;

/// Collects the trace of a step.
pub(super) struct Recorder {
    /// The start of the trace by the monotonic clock; `epoch_nanos` is the same moment by the system clock.
    instant: Instant,
    epoch_nanos: u64,
    scheduled: Box<[AtomicU64]>,
    nodes: Mutex<Vec<NodeTrace>>,
    /// The step's activity, with the notes of its kernels.
    activity: Arc<Activity>,
}

impl Recorder {
    pub(super) fn new(plan: &Plan, activity: Arc<Activity>) -> Recorder {
        activity.keep_notes();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Recorder {
            instant: Instant::now(),
            epoch_nanos: since_epoch.as_nanos() as u64,
            scheduled: plan.nodes.iter().map(|_| AtomicU64::new(0)).collect(),
            nodes: Mutex::new(Vec::with_capacity(plan.nodes.len())),
            activity,
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        self.epoch_nanos + at.saturating_duration_since(self.instant).as_nanos() as u64
    }

    pub(super) fn scheduled(&self, id: u32) {
        self.scheduled[id as usize].store(self.nanos(Instant::now()), Ordering::Relaxed);
    }

    /// Records that a node has ended with these outputs.
    pub(super) fn record(&self, plan: &Plan, id: u32, started: Instant, outputs: &[Value]) {
        let end = self.nanos(Instant::now());
        if self.nodes.lock().len() >= MAX_TRACED {
            return;
        }
        let node = &plan.nodes[id as usize].node;
        let note = self.activity.take_note(node).map_or(String::new(), |note| format!(" [{note}]"));
        let trace = NodeTrace {
            node: node.name.clone(),
            label: plan.label(id) + &note,
            scheduled: self.scheduled[id as usize].load(Ordering::Relaxed),
            start: self.nanos(started),
            end,
            thread: rayon::current_thread_index().unwrap_or(0) as u64,
            outputs: outputs.iter().enumerate().filter_map(|(i, value)| output_trace(i, value)).collect(),
        };
        self.nodes.lock().push(trace);
    }

    /// Returns the trace. Constants, which no step computes, come first with a duration of 0.
    pub(super) fn take(&self, plan: &Plan) -> Trace {
        let constants = (0..plan.nodes.len() as u32)
            .filter(|&id| matches!(plan.nodes[id as usize].action, Action::Constant));
        let mut nodes: Vec<NodeTrace> = constants
            .map(|id| NodeTrace {
                node: plan.nodes[id as usize].node.name.clone(),
                label: plan.label(id),
                scheduled: self.epoch_nanos,
                start: self.epoch_nanos,
                end: self.epoch_nanos,
                thread: 0,
                outputs: plan
                    .constants_of(id)
                    .iter()
                    .enumerate()
                    .filter_map(|(i, value)| output_trace(i, value))
                    .collect(),
            })
            .collect();
        nodes.append(&mut self.nodes.lock());
        Trace { nodes }
    }
}

fn output_trace(slot: usize, value: &Value) -> Option<OutputTrace> {
    match value {
        Value::Host(tensor) => Some(OutputTrace {
            slot,
            dtype: tensor.dtype(),
            shape: tensor.shape().clone(),
            bytes: tensor.num_bytes() as u64,
        }),
        Value::Device(tensor) => Some(OutputTrace {
            slot,
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            bytes: tensor.memory.len() as u64,
        }),
        Value::Ref(_) | Value::View(_) => {
            let value = value.clone().dereferenced().ok()??;
            output_trace(slot, &value)
        }
        Value::None => None,
    }
}
