//! Reading of stored datasets.

use super::metadata::Metadata;
use super::{check_local, chunk_file};
use crate::objects::dataset::function::{CapturedFunction, FunctionInstance};
use crate::objects::dataset::map::iterate_result;
use crate::objects::dataset::source::Elements;
use crate::objects::dataset::speed::pause;
use crate::objects::dataset::state::{ExchangedState, StateExchange};
use crate::objects::dataset::transform::{dataset, from_state};
use crate::objects::dataset::{Dataset, DatasetIterator, DatasetVariant, Element, ElementSpec};
use crate::objects::dataset::{IteratorContext, Pull, UNKNOWN};
use crate::objects::io::{Compression, RecordReader};
use bytes::Bytes;
use device::{Error, Result};
use graph::{Code, DType, Tensor};
use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The files of a stored part of a dataset.
#[derive(Clone, Debug)]
enum Chunks {
    /// The numbered files in the folder of a shard.
    Of(PathBuf),
    One(PathBuf),
}

impl Chunks {
    /// Returns the file with number `chunk`; `None` after the last.
    ///
    /// # Errors
    /// `NotFound` if there is no first file.
    fn open(&self, chunk: u64, compression: Compression) -> Result<Option<RecordReader>> {
        let path = match self {
            Chunks::Of(folder) => chunk_file(folder, chunk),
            Chunks::One(_) if chunk > 0 => return Ok(None),
            Chunks::One(path) => path.clone(),
        };
        match RecordReader::open(&path, compression) {
            Ok(reader) => Ok(Some(reader)),
            Err(error) if error.code() == Code::NotFound && chunk > 0 => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The state of an iterator over stored elements.
struct StoredState {
    chunks: Chunks,
    compression: Compression,
    /// The number of the file that is open or that is opened next.
    chunk: u64,
    reader: Option<RecordReader>,
    /// Number of elements to skip before the next element.
    skipped: u64,
}

impl ExchangedState for StoredState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.value(&mut self.chunk)?;
        exchange.value(&mut self.skipped)?;
        let mut offset = self.reader.as_ref().map(RecordReader::offset);
        exchange.value(&mut offset)?;
        if exchange.is_restoring() {
            self.reader = None;
            if let Some(offset) = offset {
                self.reader = self.chunks.open(self.chunk, self.compression)?;
                if let Some(reader) = &mut self.reader {
                    reader.advance_to(offset)?;
                }
            }
        }
        Ok(())
    }
}

impl StoredState {
    fn next(&mut self, spec: &ElementSpec, pull: &Pull) -> Result<Option<Element>> {
        loop {
            pull.check()?;
            let reader = match &mut self.reader {
                Some(reader) => reader,
                None => match self.chunks.open(self.chunk, self.compression)? {
                    Some(reader) => self.reader.insert(reader),
                    None => return Ok(None),
                },
            };
            let components = spec.dtypes.len();
            if self.skipped > 0 {
                let wanted = self.skipped.saturating_mul(components as u64);
                self.skipped -= reader.skip_records(wanted)? / components as u64;
            }
            let mut element = Element::new();
            if self.skipped == 0 {
                while element.len() < components
                    && let Some(record) = reader.next_record()?
                {
                    let malformed = |_| Error::new(Code::DataLoss, "a record is not a tensor");
                    element.push(checkpoint::tensor::decode(&record).map_err(malformed)?);
                }
            }
            if element.is_empty() {
                (self.reader, self.chunk) = (None, self.chunk + 1);
                continue;
            }
            if element.len() < components {
                let message = format!("Expected {components} components but got {}.", element.len());
                return Err(Error::new(Code::DataLoss, message));
            }
            spec.check(&ElementSpec::of(&element))?;
            return Ok(Some(element));
        }
    }
}

/// Returns the dataset of the elements in files; `name` is the name of the dataset's kind.
fn stored(
    name: &'static str,
    chunks: Chunks,
    start: u64,
    compression: Compression,
    spec: ElementSpec,
) -> Result<Arc<Dataset>> {
    let out = spec.clone();
    dataset(name, spec, UNKNOWN, &[], move |_| {
        let chunks = chunks.clone();
        let state = StoredState { chunks, compression, chunk: 0, reader: None, skipped: start };
        let spec = out.clone();
        from_state(name, state, move |state, pull| state.next(&spec, pull))
    })
}

/// Returns the dataset of the elements of a shard, without the first `start` elements.
pub(crate) fn stored_shard(
    folder: PathBuf,
    start: u64,
    compression: Compression,
    spec: ElementSpec,
) -> Result<Arc<Dataset>> {
    stored("SnapshotDatasetReader", Chunks::Of(folder), start, compression, spec)
}

/// Returns the dataset of the elements in one file.
pub(crate) fn stored_chunk(
    file: PathBuf,
    compression: Compression,
    spec: ElementSpec,
) -> Result<Arc<Dataset>> {
    stored("SnapshotChunk", Chunks::One(file), 0, compression, spec)
}

/// The state of an iterator over a loaded dataset.
pub(super) struct LoadState {
    /// The argument of `reader`: the dataset of the datasets of the shards.
    shards: Tensor,
    reader: FunctionInstance,
    ctx: IteratorContext,
    /// The iterator over the dataset that `reader` returned; `None` before the first pull.
    current: Option<Box<dyn DatasetIterator>>,
}

impl LoadState {
    pub(super) fn new(shards: Tensor, reader: FunctionInstance, ctx: IteratorContext) -> LoadState {
        LoadState { shards, reader, ctx, current: None }
    }

    /// Returns the next element of the dataset that the function returned.
    pub(super) fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        if self.current.is_none() {
            self.current = Some(self.iterate(pull)?);
        }
        self.current.as_mut().map_or(Ok(None), |current| current.next(pull))
    }

    /// Calls the function, and returns an iterator over its result.
    fn iterate(&self, pull: &Pull) -> Result<Box<dyn DatasetIterator>> {
        iterate_result(&self.reader.call(pull, vec![self.shards.clone()])?, &self.ctx, 0)
    }
}

impl ExchangedState for LoadState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.function(&self.reader)?;
        let mut has_begun = self.current.is_some();
        exchange.value(&mut has_begun)?;
        if exchange.is_restoring() {
            self.current = if has_begun { Some(self.iterate(exchange.pull())?) } else { None };
        }
        self.current.iter_mut().try_for_each(|current| current.exchange(exchange))
    }
}

/// Returns the dataset stored in a folder. `reader` gets the dataset of the datasets of the shards, and returns the
/// dataset of their elements.
///
/// # Errors
/// `NotFound` if the folder has no stored dataset.
pub(crate) fn load(
    folder: &Path,
    compression: Compression,
    reader: CapturedFunction,
    spec: ElementSpec,
) -> Result<Arc<Dataset>> {
    let metadata = Metadata::read(folder)?;
    let shards = shards_of(&folder.join(&metadata.run), compression, &spec)?;
    // TensorFlow writes a negative number if it has not counted the elements.
    let is_known = metadata.is_final && metadata.elements >= 0;
    let cardinality = if is_known { metadata.elements } else { UNKNOWN };
    dataset("Load", spec, cardinality, &[], move |ctx| {
        let (reader, shards) = (reader.instance(ctx)?, shards.clone());
        from_state("Load", LoadState::new(shards, reader, ctx.clone()), LoadState::next)
    })
}

/// Returns the dataset of the datasets of a run's shards.
pub(super) fn shards_of(run: &Path, compression: Compression, spec: &ElementSpec) -> Result<Tensor> {
    let mut shards = Vec::new();
    for name in names_in(run)?.into_iter().filter(|name| name.ends_with(".shard")) {
        let shard = stored_shard(run.join(name), 0, compression, spec.clone())?;
        shards.push(vec![DatasetVariant::tensor(shard, [])?]);
    }
    let nested =
        Elements::dataset("SnapshotNestedDatasetReader", ElementSpec::scalars(&[DType::Variant]), shards)?;
    DatasetVariant::tensor(nested, [])
}

/// Returns the sorted names in a folder; none if it does not exist.
///
/// # Errors
/// `Unimplemented` if the folder is in a remote store.
pub(super) fn names_in(folder: &Path) -> Result<Vec<String>> {
    check_local(folder)?;
    let failed = |e: &std::io::Error| Error::from(checkpoint::Error::file(folder, e));
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| failed(&e))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(|e| failed(&e))?.file_name();
        names.extend(name.into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// The time between two looks at a snapshot that is not complete.
const LOOK: Duration = Duration::from_millis(500);

/// The state of an iterator over the names of the files of a snapshot.
struct ChunkNames {
    /// The names that have been found.
    found: Vec<Bytes>,
    waiting: VecDeque<Bytes>,
}

impl ExchangedState for ChunkNames {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.value(&mut self.found)?;
        exchange.value(&mut self.waiting)
    }
}

/// Returns the dataset of the names of the files of a distributed snapshot. While the snapshot is being written, an
/// iterator waits for more files.
pub(crate) fn chunk_names(folder: PathBuf) -> Result<Arc<Dataset>> {
    let folder = Arc::new(folder);
    dataset("ListSnapshotChunks", ElementSpec::scalars(&[DType::String]), UNKNOWN, &[], move |_| {
        let folder = folder.clone();
        let state = ChunkNames { found: Vec::new(), waiting: VecDeque::new() };
        from_state("ListSnapshotChunks", state, move |state, pull| {
            loop {
                pull.check()?;
                if let Some(name) = state.waiting.pop_front() {
                    return Ok(Some(vec![Tensor::string(name)]));
                }
                // The end is looked for before the files, so that no file is missed that is written before it.
                let is_done = folder.join("DONE").exists();
                if let Ok(reason) = std::fs::read(folder.join("ERROR")) {
                    let reason = String::from_utf8_lossy(&reason).into_owned();
                    let message = format!("the snapshot in {} failed: {reason}", folder.display());
                    return Err(Error::new(Code::FailedPrecondition, message));
                }
                let chunks = folder.join("chunks");
                for name in names_in(&chunks)? {
                    let path = Bytes::copy_from_slice(chunks.join(name).as_os_str().as_bytes());
                    if !state.found.contains(&path) {
                        state.found.push(path.clone());
                        state.waiting.push_back(path);
                    }
                }
                match (state.waiting.is_empty(), is_done) {
                    (true, true) => return Ok(None),
                    (true, false) => pause(pull, LOOK)?,
                    _ => {}
                }
            }
        })
    })
}
