//! [`CaptureDevice`], a device that captures the work of its kernels into a CUDA graph, and [`Graph`], the
//! captured graph.

use super::arena::Arena;
use super::driver::{GraphId, StreamId};
use super::kernel_stream::KernelStream;
use super::piece_batch::PieceBatch;
use super::streams::Stream;
use device::value::Value;
use device::{Device, DeviceTensor, Processor, Transfer};
use device::{Error, Result};
use graph::Tensor;
use parking_lot::Mutex;
use std::sync::Arc;

/// A CUDA graph with the memory that its kernels use.
#[derive(Debug)]
pub(super) struct Graph {
    arena: Arc<Arena>,
    id: GraphId,
}

impl Graph {
    /// Captures the kernels that `run` enqueues on the device that `run` gets as its argument.
    ///
    /// # Errors
    /// The errors of `run` and of the driver; `FailedPrecondition` if graphs are turned off. No kernel has run in any
    /// of these cases.
    pub(super) fn capture<T>(
        device: &Arc<Device>,
        arena: &Arc<Arena>,
        run: impl FnOnce(&Arc<Device>) -> Result<T>,
    ) -> Result<(Graph, T)> {
        let engine = arena.engine();
        let stream = engine
            .capture_stream()
            .ok_or_else(|| Error::new(graph::Code::FailedPrecondition, "graphs are not to be captured"))?;
        let capture = Capture { arena: arena.clone(), stream: *stream, pending: Mutex::default() };
        let capture_device = Arc::new(CaptureDevice { device: device.clone(), capture });
        let mut open = Open::begin(arena, *stream)?;
        let result = run(&Arc::new(device.with_processor(capture_device.clone())))?;
        capture_device.stream().flush()?;
        Ok((open.end()?, result))
    }

    /// Enqueues the graph in the compute stream.
    ///
    /// # Errors
    /// The errors of the driver.
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

/// A guard that ends the capture on drop, so that an error cannot leave the CUDA stream in capture mode.
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
            // The result is ignored: the graph of a failed capture is useless, and the error that stopped `run`
            // is already being returned.
            drop(self.end());
        }
    }
}

/// A GPU that captures the work of its kernels and forwards all other calls to the real device.
#[derive(Debug)]
pub(super) struct CaptureDevice {
    device: Arc<Device>,
    capture: Capture,
}

/// An open capture: the CUDA stream that captures, and the memory that captured kernels use.
#[derive(Debug)]
pub(super) struct Capture {
    pub(super) arena: Arc<Arena>,
    pub(super) stream: StreamId,
    /// Launches of one kernel that are held back, because the next launch may be added to the batch.
    pub(super) pending: Mutex<Option<PieceBatch>>,
}

impl CaptureDevice {
    /// Returns the stream that kernels on this device enqueue to.
    pub(super) fn stream(&self) -> KernelStream<'_> {
        KernelStream::capturing(&self.capture)
    }
}

impl Processor for CaptureDevice {
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
