//! Segments as a device sees them: runs of kernels that only enqueue, which some devices enqueue again as one.

use crate::device::Device;
use crate::error::Result;
use crate::value::Value;
use std::fmt;
use std::sync::Arc;

/// Whether a device may capture what a kernel enqueues, and repeat it while shapes, and values in host memory, are the
/// same: from what does least on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capture {
    /// It may not: the kernel waits, draws on a state of the host's, puts other memory in a variable's place, or nobody has
    /// looked.
    #[default]
    Never,
    /// There is nothing to capture: what the kernel gives is what it was given, or follows from shapes and values in host
    /// memory.
    Passes,
    /// The kernel does nothing but enqueue work. What it gives is new, or as of [`Capture::Passes`].
    Work,
    /// Besides, the work changes variables in place.
    Updates,
    /// Besides, the work puts other values where those of variables are.
    Assigns,
}

impl Capture {
    /// Whether there is something to repeat.
    pub fn works(self) -> bool {
        self >= Capture::Work
    }

    /// Whether variables are other ones afterwards.
    pub fn changes(self) -> bool {
        self >= Capture::Updates
    }
}

/// A segment, for who repeats it.
#[derive(Clone, Debug)]
pub struct SegmentInfo {
    /// Its first node's name.
    pub name: Arc<str>,
    /// How many kernels it has.
    pub kernels: usize,
    /// How many of them enqueue something.
    pub works: usize,
    /// By input: what kernels do with the variable that it leads to, if it does.
    pub inputs: Vec<Access>,
}

/// What kernels do with a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    Reads,
    /// They may change it in place.
    Changes,
}

/// Runs a segment's kernels one by one on a device: from the values of its inputs to those of its outputs.
pub type Walk<'a> = dyn FnMut(&Arc<Device>, Vec<Value>) -> Result<Vec<Value>> + 'a;

/// Runs one segment, step after step.
pub trait Repeater: Send + Sync + fmt::Debug {
    /// What `walk` does, whether by it or not. Several steps may ask at once.
    ///
    /// # Errors
    /// Those of `walk`, and the device's.
    fn run(&self, device: &Arc<Device>, inputs: Vec<Value>, walk: &mut Walk<'_>) -> Result<Vec<Value>>;
}
