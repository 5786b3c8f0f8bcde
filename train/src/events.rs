//! Event files, which TensorBoard reads: summaries, the graph, traces of steps.

use crate::error::{Error, Result};
use checkpoint::proto::Writer;
use kernels::objects::event_file::{EventFile, Settings, event};
use graph::Graph;
use prost::Message;
use proto::convert::{DefaultAttrs, graph_to_bytes};
use proto::pb;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// An event file of a folder; clones write to the same one.
#[derive(Clone, Debug)]
pub struct Events {
    file: Arc<EventFile>,
}

/// Events wait no longer than this, nor more of them.
const FLUSH_AFTER: Duration = Duration::from_secs(10);
const MAX_QUEUE: usize = 100;

impl Events {
    /// Makes a file in the folder, which is made if it is not there.
    pub fn create(folder: impl Into<PathBuf>) -> Result<Events> {
        let file = EventFile::new(Settings {
            folder: folder.into(),
            suffix: String::new(),
            max_queue: MAX_QUEUE,
            flush_after: Some(FLUSH_AFTER),
        });
        file.open().map_err(failed)?;
        Ok(Events { file: Arc::new(file) })
    }

    /// A `Summary` message, as summary ops give it.
    pub fn summary(&self, step: i64, summary: &[u8]) -> Result<()> {
        self.add(step, |event| _ = event.bytes(5, summary))
    }

    pub fn scalar(&self, step: i64, tag: &str, value: f32) -> Result<()> {
        let mut summary = Writer::new();
        summary.message(1, |entry| _ = entry.string(1, tag.as_bytes()).float(2, value));
        self.summary(step, &summary.finish())
    }

    pub fn graph(&self, graph: &Graph) -> Result<()> {
        let def = graph_to_bytes(graph, DefaultAttrs::Keep)?;
        self.add(0, |event| _ = event.bytes(4, &def))
    }

    /// What a traced step recorded.
    pub fn run_metadata(&self, step: i64, metadata: &pb::RunMetadata) -> Result<()> {
        self.add(step, |event| {
            event.message(8, |tagged| {
                tagged.string(1, format!("step_{step}").as_bytes()).bytes(2, &metadata.encode_to_vec());
            });
        })
    }

    /// Writes what waits.
    pub fn flush(&self) -> Result<()> {
        self.file.flush().map_err(failed)
    }

    fn add(&self, step: i64, write: impl FnOnce(&mut Writer)) -> Result<()> {
        let event = event(|event| {
            event.int(2, step);
            write(event);
        });
        self.file.write(event).map_err(failed)
    }
}

fn failed(error: device::Error) -> Error {
    Error::Events(Arc::new(error))
}
