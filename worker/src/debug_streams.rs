//! The streams of debug ops to the debuggers of clients, over gRPC.

use device::cancel::Cancellation;
use device::debug_stream::{DebugStream, DebugStreams, Events, Sent};
use device::{Error, Result};
use proto::Status;
use proto::event_stream::{EventStream, EventStreams, Gate};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// The streams of a server, and the runtime that drives their connections.
#[derive(Debug)]
pub(crate) struct TaskStreams {
    pub(crate) streams: Arc<EventStreams>,
    pub(crate) runtime: Handle,
}

impl DebugStreams for TaskStreams {
    fn stream(&self, url: &str) -> Result<Arc<dyn DebugStream>> {
        let stream = self.streams.stream(url).map_err(|status| error(&status))?;
        Ok(Arc::new(TaskStream { stream, runtime: self.runtime.clone() }))
    }
}

#[derive(Debug)]
struct TaskStream {
    stream: Arc<EventStream>,
    runtime: Handle,
}

impl DebugStream for TaskStream {
    fn is_enabled(&self, watch: &str) -> bool {
        self.stream.gate(watch) != Gate::Closed
    }

    fn send_graph(&self, events: Events) -> Result<()> {
        self.runtime.block_on(self.stream.send_graph(events)).map_err(|status| error(&status))
    }

    fn send_tensor(&self, watch: &str, events: Events, cancellation: Arc<Cancellation>, sent: Sent) {
        let cancelled = Arc::new(Notify::new());
        let notify = cancelled.clone();
        let registration = match cancellation.register(move |_| notify.notify_one()) {
            Ok(registration) => registration,
            Err(reason) => return sent(Err(reason)),
        };
        let (stream, watch) = (self.stream.clone(), watch.to_owned());
        self.runtime.spawn(async move {
            let result = tokio::select! {
                sent = stream.send_tensor(&watch, events) => sent.map_err(|status| error(&status)),
                () = cancelled.notified() => cancellation.check(),
            };
            cancellation.deregister(registration);
            sent(result);
        });
    }
}

fn error(status: &Status) -> Error {
    Error::new(status.code, status.message.clone())
}
