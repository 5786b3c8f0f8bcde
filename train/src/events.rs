//! Event files for TensorBoard: summaries, the graph, traces of steps.

use crate::error::{Error, Result};
use checkpoint::proto::Writer;
use graph::Graph;
use kernels::objects::event_file::{EventFile, Settings, event};
use prost::Message;
use proto::convert::{DefaultAttrs, graph_to_bytes};
use proto::pb;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// An event file in a folder; clones write to the same file.
#[derive(Clone, Debug)]
pub struct Events {
    file: Arc<EventFile>,
}

/// The longest time that an event stays unwritten.
const FLUSH_AFTER: Duration = Duration::from_secs(10);
/// The largest number of unwritten events.
const MAX_QUEUE: usize = 100;

impl Events {
    /// Creates an event file in the folder, which is created if it does not exist.
    pub fn create(folder: impl Into<PathBuf>) -> Result<Events> {
        let file = EventFile::new(Settings {
            folder: folder.into(),
            suffix: String::new(),
            max_queue: MAX_QUEUE,
            flush_after: Some(FLUSH_AFTER),
        });
        file.open().map_err(from_executor)?;
        Ok(Events { file: Arc::new(file) })
    }

    /// Writes a `Summary` message, as encoded by a summary op.
    pub fn summary(&self, step: i64, summary: &[u8]) -> Result<()> {
        self.add(step, |event| _ = event.bytes(5, summary))
    }

    /// Writes one scalar as a summary with the tag `tag`.
    pub fn scalar(&self, step: i64, tag: &str, value: f32) -> Result<()> {
        let mut summary = Writer::new();
        summary.message(1, |entry| _ = entry.string(1, tag.as_bytes()).float(2, value));
        self.summary(step, &summary.finish())
    }

    /// Writes the graph as a `GraphDef`, for the graph view of TensorBoard.
    pub fn graph(&self, graph: &Graph) -> Result<()> {
        let def = graph_to_bytes(graph, DefaultAttrs::Keep)?;
        self.add(0, |event| _ = event.bytes(4, &def))
    }

    /// Writes the metadata recorded by a traced step, with the tag `step_<step>`.
    pub fn run_metadata(&self, step: i64, metadata: &pb::RunMetadata) -> Result<()> {
        self.add(step, |event| {
            event.message(8, |tagged| {
                tagged.string(1, format!("step_{step}").as_bytes()).bytes(2, &metadata.encode_to_vec());
            });
        })
    }

    /// Writes all unwritten events to the file.
    pub fn flush(&self) -> Result<()> {
        self.file.flush().map_err(from_executor)
    }

    /// Queues an event of global step `step` for the file; `write` adds the event's content.
    fn add(&self, step: i64, write: impl FnOnce(&mut Writer)) -> Result<()> {
        let event = event(|event| {
            event.int(2, step);
            write(event);
        });
        self.file.write(event).map_err(from_executor)
    }
}

fn from_executor(error: device::Error) -> Error {
    Error::Events(Arc::new(error))
}
