//! The interface between the executor and devices that capture segments: runs of kernels that only enqueue work, which
//! a device can enqueue again as one graph.

use crate::device::Device;
use crate::error::Result;
use crate::value::Value;
use std::fmt;
use std::sync::Arc;

/// The extent to which a device may capture the work that a kernel enqueues, and replay it while shapes and host values
/// are the same. The variants are ordered by increasing effect on variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CaptureClass {
    /// The kernel may not be captured: it waits, depends on host state, replaces a variable's memory, or has not been
    /// examined.
    #[default]
    Never,
    /// The kernel enqueues nothing: its outputs are its inputs, or follow from shapes and host values.
    Passes,
    /// The kernel only enqueues work. Its outputs are new tensors, or inputs, or follow from shapes and host values.
    Work,
    /// The kernel enqueues work that changes variables in place.
    Updates,
    /// The kernel enqueues work that also replaces the values of variables.
    Assigns,
}

impl CaptureClass {
    /// Returns whether the kernel enqueues work that can be replayed.
    pub fn works(self) -> bool {
        self >= CaptureClass::Work
    }

    /// Returns whether the kernel changes variables, in place or by assignment.
    pub fn changes(self) -> bool {
        self >= CaptureClass::Updates
    }
}

/// A segment's description for the device that captures it.
#[derive(Clone, Debug)]
pub struct SegmentInfo {
    /// The name of the segment's first node.
    pub name: Arc<str>,
    /// The number of kernels in the segment.
    pub kernels: usize,
    /// The number of kernels in the segment that enqueue work.
    pub works: usize,
    /// The access of the kernels to each input of the segment, which matters if the input refers to a variable.
    pub inputs: Vec<Access>,
}

/// The access of a segment's kernels to a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// The kernels only read the variable.
    Reads,
    /// The kernels may change the variable in place.
    Changes,
}

/// A function that runs a segment's kernels one by one on a device. It takes the values of the segment's inputs and
/// returns those of its outputs.
pub type RunKernels<'a> = dyn FnMut(&Arc<Device>, Vec<Value>) -> Result<Vec<Value>> + 'a;

/// The runner of a segment, shared by all steps. It decides when to run the kernels, to capture them as a graph, or to
/// replay the graph.
pub trait SegmentRunner: Send + Sync + fmt::Debug {
    /// Computes the segment's outputs, by calling `run_kernels` or by replaying a captured graph. Several steps may call this
    /// function at the same time.
    ///
    /// # Errors
    /// Errors of `run_kernels` and of the device.
    fn run(
        &self,
        device: &Arc<Device>,
        inputs: Vec<Value>,
        run_kernels: &mut RunKernels<'_>,
    ) -> Result<Vec<Value>>;
}
