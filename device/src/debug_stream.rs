//! Streams of events from debug ops to the debuggers of clients, which the worker implements.

use crate::cancel::Cancellation;
use crate::error::Result;
use std::fmt;
use std::sync::Arc;

/// The streams of a server, one a URL.
pub trait DebugStreams: Send + Sync + fmt::Debug {
    /// Returns the stream to a debugger's URL, `grpc://host:port` with an optional path. It connects at its first event.
    ///
    /// # Errors
    /// `InvalidArgument` for another URL.
    fn stream(&self, url: &str) -> Result<Arc<dyn DebugStream>>;
}

/// The stream of events to a debugger. Its calls block.
pub trait DebugStream: Send + Sync + fmt::Debug {
    /// Returns whether the debugger has enabled a watch, named `node:slot:op`.
    fn is_enabled(&self, watch: &str) -> bool;

    /// Sends a graph as encoded `Event` messages.
    ///
    /// # Errors
    /// `FailedPrecondition` that names the URL, if the debugger cannot be reached or does not accept the events.
    fn send_graph(&self, events: Vec<Vec<u8>>) -> Result<()>;

    /// Sends the tensor of a watch as encoded `Event` messages, and waits for the debugger's reply if the watch is a
    /// breakpoint.
    ///
    /// # Errors
    /// Those of [`DebugStream::send_graph`], and the reason of the step's cancellation.
    fn send_tensor(&self, watch: &str, events: Vec<Vec<u8>>, cancellation: &Cancellation) -> Result<()>;
}
