//! A GPU's streams, and the events by which they wait for each other.

use super::driver::{Driver, EventId, StreamId};
use device::Result;
use parking_lot::Mutex;
use std::sync::Arc;

/// The purpose of a stream. Each kind of work has a stream of its own, so that copies overlap with kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The stream of kernels.
    Compute,
    /// The stream of copies from host memory, and from the IPC buffers of other processes.
    In,
    /// The stream of copies to host memory.
    Out,
    /// The stream of copies to other GPUs, and into IPC buffers.
    Peer,
    /// The stream of collectives over several GPUs.
    Collective,
}

/// The CUDA streams of one GPU.
#[derive(Debug)]
pub(super) struct Streams {
    driver: Arc<dyn Driver>,
    ids: [StreamId; 5],
    /// Events that are not in use and may be recorded again.
    idle: Arc<Mutex<Vec<EventId>>>,
}

impl Streams {
    /// Creates one CUDA stream for each [`Stream`].
    pub(super) fn new(driver: Arc<dyn Driver>) -> Result<Streams> {
        let mut ids = [StreamId(0); 5];
        for id in &mut ids {
            *id = driver.create_stream()?;
        }
        Ok(Streams { driver, ids, idle: Arc::default() })
    }

    /// Returns the driver's id of a stream.
    pub(super) fn id(&self, stream: Stream) -> StreamId {
        self.ids[stream as usize]
    }

    /// Records an event after the work enqueued in the stream so far.
    pub(super) fn mark(&self, stream: Stream) -> Result<Arc<Mark>> {
        let idle = self.idle.lock().pop();
        let event = match idle {
            Some(event) => event,
            None => self.driver.create_event()?,
        };
        let mark = Arc::new(Mark { stream, event, driver: self.driver.clone(), idle: self.idle.clone() });
        self.driver.record(event, self.id(stream))?;
        Ok(mark)
    }

    /// Makes work enqueued next in `stream` wait for an event, which may be of another GPU. Does nothing for an
    /// event of `stream` itself.
    pub(super) fn wait(&self, stream: Stream, mark: &Mark) -> Result<()> {
        let is_own = mark.stream == stream && Arc::ptr_eq(&mark.idle, &self.idle);
        if is_own { Ok(()) } else { self.driver.wait(self.id(stream), mark.event) }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for event in self.idle.lock().drain(..) {
            self.driver.destroy_event(event);
        }
    }
}

/// An event that is recorded in a CUDA stream; on drop the driver's event is kept for reuse.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) stream: Stream,
    event: EventId,
    driver: Arc<dyn Driver>,
    idle: Arc<Mutex<Vec<EventId>>>,
}

impl Mark {
    /// Blocks the calling thread until the event has completed.
    pub(super) fn wait_on_host(&self) -> Result<()> {
        self.driver.wait_on_host(self.event)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.idle.lock().push(self.event);
    }
}
