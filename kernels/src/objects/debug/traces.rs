//! Files of the debugger of TensorFlow 2: a set of record files whose names begin alike, in the folder of a run. Servers
//! write the file of traces, which has a record for each watched tensor, and the metadata; the others stay empty.

use super::{FILE_SCHEME, failed};
use crate::objects::io::{Compression, RecordWriter};
use checkpoint::proto::Writer;
use checkpoint::tensor;
use device::{Error, Result};
use graph::Tensor;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

const PREFIX: &str = "tfdbg_events";
const METADATA: &str = "metadata";
const TRACES: &str = "graph_execution_traces";
/// The files of a set that only the client writes.
const EMPTY: [&str; 4] = ["source_files", "stack_frames", "graphs", "execution"];
/// The version of TensorFlow whose files these are, and of their format.
const TENSORFLOW: &[u8] = b"2.21.0";
const FORMAT: &[u8] = b"debug.Event:1";

/// The files of all folders that kernels of this process write.
static OPEN: Mutex<BTreeMap<PathBuf, Weak<TraceFiles>>> = Mutex::new(BTreeMap::new());

/// The description of a watched tensor.
#[derive(Debug)]
pub struct Trace {
    /// The id of the graph in the client's files.
    pub context: String,
    pub op: String,
    pub slot: i64,
    /// The number of the debugger's mode, which says what the tensor is: the watched tensor, or numbers about it.
    pub mode: i64,
    pub device: String,
}

/// The files of a run in one folder. Dropping them writes the records that are kept in memory.
#[derive(Debug)]
pub struct TraceFiles {
    state: Mutex<TraceState>,
}

#[derive(Debug)]
struct TraceState {
    traces: RecordWriter,
    /// The newest records, if only so many are kept.
    newest: VecDeque<Vec<u8>>,
}

impl TraceFiles {
    /// Returns the files in the folder that a debug URL names; creates them if no kernel of this process has.
    ///
    /// # Errors
    /// `Internal` for a URL that is not a file's, like TensorFlow; an error that names the path of a file that cannot be
    /// created.
    pub fn open(url: &str, run: &str) -> Result<Arc<TraceFiles>> {
        let Some(folder) = url.strip_prefix(FILE_SCHEME).map(Path::new) else {
            return Err(Error::internal(format!("Unsupported debug URL schema in: {url}")));
        };
        let mut open = OPEN.lock();
        if let Some(files) = open.get(folder).and_then(Weak::upgrade) {
            return Ok(files);
        }
        let files = Arc::new(TraceFiles::create(folder, run)?);
        open.retain(|_, files| files.strong_count() > 0);
        open.insert(folder.to_owned(), Arc::downgrade(&files));
        Ok(files)
    }

    fn create(folder: &Path, run: &str) -> Result<TraceFiles> {
        fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = match host.trim() {
            "" => "localhost",
            named => named,
        };
        let mut seconds = since_1970() as u64;
        let start = loop {
            let start = format!("{PREFIX}.{seconds:010}.{host}");
            let path = folder.join(format!("{start}.{METADATA}"));
            match File::create_new(&path) {
                Ok(_) => break start,
                // Another task writes to the same folder.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => seconds += 1,
                Err(error) => return Err(failed(&path, &error)),
            }
        };
        let path_of = |kind: &str| folder.join(format!("{start}.{kind}"));
        for kind in EMPTY {
            let path = path_of(kind);
            File::create(&path).map_err(|error| failed(&path, &error))?;
        }
        let mut metadata = RecordWriter::create(path_of(METADATA), Compression::None)?;
        let mut event = Writer::new();
        event.double(1, since_1970()).message(3, |of_run| {
            of_run.string(1, TENSORFLOW).string(2, FORMAT).string(3, run.as_bytes());
        });
        metadata.write(&event.finish())?;
        metadata.finish()?;
        let traces = RecordWriter::create(path_of(TRACES), Compression::None)?;
        Ok(TraceFiles { state: Mutex::new(TraceState { traces, newest: VecDeque::new() }) })
    }

    /// Adds the record of a tensor. If `kept` is positive, only so many records are kept, in memory until the files are
    /// closed; else the record is written at once.
    ///
    /// # Errors
    /// An error that names the file, if it cannot be written; `Unimplemented` for resources and variants.
    pub fn add(&self, trace: &Trace, watched: &Tensor, kept: i64) -> Result<()> {
        let watched = tensor::encode(watched)?;
        let mut event = Writer::new();
        event.double(1, since_1970()).message(10, |of_tensor| {
            of_tensor.string(1, trace.context.as_bytes()).string(2, trace.op.as_bytes());
            of_tensor.int(3, trace.slot).int(4, trace.mode).bytes(5, &watched);
            of_tensor.string(6, trace.device.as_bytes());
        });
        let mut state = self.state.lock();
        let TraceState { traces, newest } = &mut *state;
        if let Some(kept) = usize::try_from(kept).ok().filter(|&kept| kept > 0) {
            newest.push_back(event.finish());
            newest.drain(..newest.len().saturating_sub(kept));
            return Ok(());
        }
        traces.write(&event.finish())?;
        traces.flush()
    }
}

impl Drop for TraceFiles {
    fn drop(&mut self) {
        let TraceState { traces, newest } = self.state.get_mut();
        let written = newest.iter().try_for_each(|record| traces.write(record)).and_then(|()| traces.flush());
        if let Err(error) = written {
            tracing::error!("the newest traces of the debugger are lost: {error}");
        }
    }
}

/// Returns the seconds since 1970.
fn since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
