//! The device of kernels whose work is captured, and the graph that comes of it.

use super::arena::Arena;
use super::driver::{GraphId, StreamId};
use super::lane::Lane;
use super::pieces::Pieces;
use super::streams::Stream;
use device::value::Value;
use device::{Device, DeviceTensor, Processor, Transfer};
use device::{Error, Result};
use graph::Tensor;
use parking_lot::Mutex;
use std::sync::Arc;

/// Work that was captured, with the memory that it works in.
#[derive(Debug)]
pub(super) struct Graph {
    arena: Arc<Arena>,
    id: GraphId,
}

impl Graph {
    /// Captures what kernels enqueue that `run` runs on the device that it is given.
    ///
    /// # Errors
    /// Those of `run`, and the driver's; `FailedPrecondition` where graphs are not wanted. Then nothing has run.
    pub(super) fn capture<T>(
        device: &Arc<Device>,
        arena: &Arc<Arena>,
        run: impl FnOnce(&Arc<Device>) -> Result<T>,
    ) -> Result<(Graph, T)> {
        let engine = arena.engine();
        let stream = engine
            .capture_stream()
            .ok_or_else(|| Error::new(graph::Code::FailedPrecondition, "graphs are not to be captured"))?;
        let capture = Capture { arena: arena.clone(), stream: *stream, waiting: Mutex::default() };
        let capturing = Arc::new(Capturing { device: device.clone(), capture });
        let mut open = Open::begin(arena, *stream)?;
        let result = run(&Arc::new(device.with_processor(capturing.clone())))?;
        capturing.lane().settle()?;
        Ok((open.end()?, result))
    }

    /// Enqueues it behind the kernels.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn launch(&self) -> Result<()> {
        let engine = self.arena.engine();
        engine.driver().launch_graph(self.id, engine.streams().id(Stream::Compute))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.arena.engine().driver().destroy_graph(self.id);
    }
}

/// A capture that is under way: whatever happens, it is ended.
struct Open<'a> {
    arena: &'a Arc<Arena>,
    stream: StreamId,
    is_ended: bool,
}

impl<'a> Open<'a> {
    fn begin(arena: &'a Arc<Arena>, stream: StreamId) -> Result<Open<'a>> {
        arena.engine().driver().begin_capture(stream)?;
        Ok(Open { arena, stream, is_ended: false })
    }

    fn end(&mut self) -> Result<Graph> {
        self.is_ended = true;
        let id = self.arena.engine().driver().end_capture(self.stream)?;
        Ok(Graph { arena: self.arena.clone(), id })
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            // What was captured of a failed run is of no use, and why it failed is being told.
            drop(self.end());
        }
    }
}

/// A GPU whose kernels' work is captured; all else is the GPU's.
#[derive(Debug)]
pub(super) struct Capturing {
    device: Arc<Device>,
    capture: Capture,
}

/// Where captured work goes, and the memory that it is on.
#[derive(Debug)]
pub(super) struct Capture {
    pub(super) arena: Arc<Arena>,
    pub(super) stream: StreamId,
    /// What has not been enqueued yet, since the next kernel may be launched with it.
    pub(super) waiting: Mutex<Option<Pieces>>,
}

impl Capturing {
    pub(super) fn lane(&self) -> Lane<'_> {
        Lane::into_graph(&self.capture)
    }
}

impl Processor for Capturing {
    fn upload(&self, tensor: Tensor, done: Transfer<Value>) {
        self.device.processor().upload(tensor, done);
    }

    fn download(&self, tensor: DeviceTensor, done: Transfer<Tensor>) {
        self.device.processor().download(tensor, done);
    }

    fn persist(&self, tensor: DeviceTensor) -> Result<DeviceTensor> {
        self.device.processor().persist(tensor)
    }

    fn has_own_memory(&self) -> bool {
        true
    }
}
