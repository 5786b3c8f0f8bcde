//! A GPU's streams, and the marks by which one waits for another.

use super::driver::{Driver, EventId, StreamId};
use device::Result;
use parking_lot::Mutex;
use std::sync::Arc;

/// What a stream is for. Each kind of work has its own, so that copies run beside kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Kernels, in the order in which nodes ran.
    Compute,
    /// From the host's memory.
    In,
    /// To the host's memory.
    Out,
    /// To other GPUs.
    Peer,
    /// What several GPUs compute together.
    Collective,
}

/// The streams of one GPU.
#[derive(Debug)]
pub(super) struct Streams {
    driver: Arc<dyn Driver>,
    ids: [StreamId; 5],
    /// Marks that nobody waits for.
    idle: Arc<Mutex<Vec<EventId>>>,
}

impl Streams {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Result<Streams> {
        let mut ids = [StreamId(0); 5];
        for id in &mut ids {
            *id = driver.create_stream()?;
        }
        Ok(Streams { driver, ids, idle: Arc::default() })
    }

    pub(super) fn id(&self, stream: Stream) -> StreamId {
        self.ids[stream as usize]
    }

    /// A mark behind what the stream has been given so far.
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

    /// What `stream` is given from now on waits for the mark, which may be another GPU's; its own marks it has passed
    /// anyway.
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

/// A mark in a stream, used again once nobody has it.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) stream: Stream,
    event: EventId,
    driver: Arc<dyn Driver>,
    idle: Arc<Mutex<Vec<EventId>>>,
}

impl Mark {
    /// Waits, on this thread, until the stream has come to the mark.
    pub(super) fn wait_here(&self) -> Result<()> {
        self.driver.wait_here(self.event)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.idle.lock().push(self.event);
    }
}
