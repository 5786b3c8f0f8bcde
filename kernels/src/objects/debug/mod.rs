//! The debugger's outputs: watched tensors and graphs, written to files or sent to a debugger of the client, by the debug
//! URLs of a node or of a graph.

mod events;
mod files;
mod traces;

pub use events::Watched;
pub use files::METADATA_PREFIX;
pub use traces::{Trace, TraceFiles};

use bytes::Bytes;
use device::cancel::Cancellation;
use device::debug_stream::{DebugStream, DebugStreams, Sent};
use device::kernel::{KernelInit, Step};
use device::{Error, Result};
use events::{TensorChunks, graph_chunks, tensor_chunks, tensor_event};
use graph::Code;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

const FILE_SCHEME: &str = "file://";
const STREAM_SCHEME: &str = "grpc://";

/// The tensor that a debug op watches.
#[derive(Clone, Debug)]
struct WatchKey {
    device: String,
    node: String,
    slot: i64,
    op: String,
    /// The name of the file of an input or output of a node, such as `node:in:0`; `None` for the name of the tensor.
    port: Option<String>,
}

impl WatchKey {
    /// Returns the name by which debuggers know the watch.
    fn name(&self) -> String {
        format!("{}:{}:{}", self.node, self.slot, self.op)
    }
}

/// A place for tensors and graphs.
#[derive(Debug)]
enum Target {
    /// A folder with files, on the machine of the task.
    Folder(PathBuf),
    /// A stream to a debugger of the client.
    Stream(Arc<dyn DebugStream>),
}

impl Target {
    /// Returns the target that a debug URL names.
    ///
    /// # Errors
    /// `Internal` for a URL of another scheme, like TensorFlow; `InvalidArgument` for a malformed address of a debugger.
    fn of_url(url: &str, streams: Option<&Arc<dyn DebugStreams>>) -> Result<Target> {
        if let Some(path) = url.strip_prefix(FILE_SCHEME) {
            return Ok(Target::Folder(path.into()));
        }
        match streams {
            Some(streams) if url.starts_with(STREAM_SCHEME) => Ok(Target::Stream(streams.stream(url)?)),
            _ => Err(Error::internal(format!(
                "Invalid debug target URL: {url}; tensors are written to {FILE_SCHEME} URLs and sent to {STREAM_SCHEME} URLs"
            ))),
        }
    }
}

/// The places to which a debug op writes its tensor.
#[derive(Debug)]
pub struct DebugTargets {
    key: WatchKey,
    targets: Vec<Target>,
    /// True if debuggers get only the tensors that they have enabled.
    is_gated: bool,
}

impl DebugTargets {
    /// Returns the targets that the attributes of a debug op describe.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed tensor name, and the errors of a URL that no target has.
    pub fn of_node(init: &KernelInit<'_>, op: &str) -> Result<DebugTargets> {
        let tensor = init.attr::<String>("tensor_name")?;
        let (node, slot) = match tensor.split_once(':') {
            None => (tensor.as_str(), (!tensor.is_empty()).then_some(0)),
            Some((node, slot)) => (node, slot.parse().ok()),
        };
        let Some(slot) = slot else { device::invalid!("Failed to parse tensor name: \"{tensor}\"") };
        let device = match init.attr::<String>("device_name")? {
            unnamed if unnamed.is_empty() => init.device.name().to_string(),
            named => named,
        };
        let key = WatchKey { device, node: node.to_owned(), slot, op: op.to_owned(), port: port_of(init)? };
        let urls = init.attr::<Vec<Bytes>>("debug_urls")?;
        let streams = init.device.debug_streams();
        let targets = urls.iter().map(|url| Target::of_url(&String::from_utf8_lossy(url), streams));
        let targets = targets.collect::<Result<_>>()?;
        Ok(DebugTargets { key, targets, is_gated: init.attr("gated_grpc")? })
    }

    /// Returns whether the op does nothing, because it is gated, and its targets are debuggers that have not enabled it.
    pub fn are_closed(&self) -> bool {
        self.is_gated && !self.targets.iter().any(|target| self.takes(target))
    }

    fn takes(&self, target: &Target) -> bool {
        match target {
            Target::Folder(_) => true,
            Target::Stream(stream) => !self.is_gated || stream.is_enabled(&self.key.name()),
        }
    }

    /// Writes a tensor to all folders, sends it to all debuggers that take it, and then calls `published`. The result is an
    /// error that names the path of a file that cannot be written, or the URL of a debugger that cannot be reached.
    pub fn publish(&self, watched: Watched<'_>, step: &Arc<Step>, published: Sent) {
        match self.write_files(watched, step).and_then(|now| tensor_chunks(&self.key, watched, now)) {
            Ok(chunks) => {
                let takes = |target: &Target| match target {
                    Target::Stream(stream) if self.takes(target) => Some(stream.clone()),
                    _ => None,
                };
                let streams: Vec<_> = self.targets.iter().filter_map(takes).collect();
                send(streams, self.key.name(), chunks, step.cancellation.clone(), published);
            }
            Err(error) => published(Err(error)),
        }
    }

    /// Writes a tensor to all folders, and returns the time of its event.
    fn write_files(&self, watched: Watched<'_>, step: &Step) -> Result<u64> {
        let now = microseconds();
        for target in &self.targets {
            if let Target::Folder(folder) = target {
                let event = tensor_event(&self.key, watched, now)?;
                files::write_tensor(folder, &self.key, step.id, now, &event)?;
            }
        }
        Ok(now)
    }
}

/// Sends a tensor to one debugger after the other, and calls `sent` at the end.
fn send(
    mut streams: Vec<Arc<dyn DebugStream>>,
    watch: String,
    chunks: TensorChunks,
    cancellation: Arc<Cancellation>,
    sent: Sent,
) {
    let Some(stream) = streams.pop() else { return sent(Ok(())) };
    let (name, events) = (watch.clone(), Box::new(chunks.clone()));
    let next = cancellation.clone();
    let go_on = move |result: Result<()>| match result {
        Ok(()) => send(streams, name, chunks, next, sent),
        Err(error) => sent(Err(error)),
    };
    stream.send_tensor(&watch, events, cancellation, Box::new(go_on));
}

/// Returns the name of the input or output that the attributes of `DebugIdentityV3` describe.
fn port_of(init: &KernelInit<'_>) -> Result<Option<String>> {
    if init.node.op.attrs.iter().all(|attr| attr.name != "io_of_node") {
        return Ok(None);
    }
    let (node, index) = (init.attr::<String>("io_of_node")?, init.attr::<i64>("io_index")?);
    let direction = if init.attr("is_input")? { "in" } else { "out" };
    Ok((!node.is_empty()).then(|| format!("{node}:{direction}:{index}")))
}

/// Writes the graph of a device, as the bytes of a GraphDef, to the folders and debuggers of debug URLs.
///
/// # Errors
/// An error that names the path of a file that cannot be written, or the URL of a debugger that cannot be reached; the
/// errors of a URL that no target has.
pub fn publish_graph<'a>(
    device: &device::Device,
    graph: &[u8],
    urls: impl IntoIterator<Item = &'a str>,
) -> Result<()> {
    let (name, now) = (device.name().to_string(), microseconds());
    for url in urls {
        match Target::of_url(url, device.debug_streams())? {
            Target::Folder(folder) => files::write_graph(&folder, &name, graph, now)?,
            Target::Stream(stream) => {
                stream.send_graph(Box::new(graph_chunks(&name, graph, now).into_iter()))?
            }
        }
    }
    Ok(())
}

/// Returns the time in microseconds since 1970.
fn microseconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Returns the error of a file that cannot be written.
fn failed(path: &std::path::Path, error: &std::io::Error) -> Error {
    use std::io::ErrorKind;
    let code = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Code::PermissionDenied,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Code::ResourceExhausted,
        _ => Code::FailedPrecondition,
    };
    Error::new(code, format!("the debugger's file {} cannot be written: {error}", path.display()))
}
