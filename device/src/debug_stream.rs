//! Streams of events from debug ops to the debuggers of clients, which the worker implements.

use crate::cancel::Cancellation;
use crate::error::Result;
use std::fmt;
use std::sync::Arc;

/// Encoded `Event` messages, which are made when they are sent.
pub type Events = Box<dyn Iterator<Item = Vec<u8>> + Send>;

/// A callback that is called once, when the events are sent or cannot be sent.
pub type Sent = Box<dyn FnOnce(Result<()>) + Send>;

/// The streams of a server, one a URL.
pub trait DebugStreams: Send + Sync + fmt::Debug {
    /// Returns the stream to a debugger's URL, `grpc://host:port` with an optional path. It connects at its first event.
    ///
    /// # Errors
    /// `InvalidArgument` for another URL.
    fn stream(&self, url: &str) -> Result<Arc<dyn DebugStream>>;
}

/// The stream of events to a debugger.
pub trait DebugStream: Send + Sync + fmt::Debug {
    /// Returns whether the debugger has enabled a watch, named `node:slot:op`.
    fn is_enabled(&self, watch: &str) -> bool;

    /// Sends a graph, and blocks until the debugger has replied.
    ///
    /// # Errors
    /// `FailedPrecondition` that names the URL, if the debugger cannot be reached or does not accept the events.
    fn send_graph(&self, events: Events) -> Result<()>;

    /// Sends the tensor of a watch, and calls `sent` after the debugger's reply if the watch is a breakpoint, else when the
    /// events wait to be written. The result is an error of [`DebugStream::send_graph`], or the reason of the step's
    /// cancellation.
    fn send_tensor(&self, watch: &str, events: Events, cancellation: Arc<Cancellation>, sent: Sent);
}
