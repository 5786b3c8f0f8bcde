//! Snapshots: an iterator writes the elements of its input to files, and later iterators over the same dataset read the
//! files. The folder of a snapshot is named after the fingerprint of the dataset.

use super::metadata::{Metadata, RECORDS, is_run_name};
use super::prefixed;
use super::reader::{LoadState, shards_of};
use super::writer::{RunFiles, RunWriter};
use crate::objects::dataset::function::CapturedFunction;
use crate::objects::dataset::state::{ExchangedState, StateExchange, mismatch};
use crate::objects::dataset::transform::{batch_preserving, from_state};
use crate::objects::dataset::{Dataset, DatasetIterator, Element, IteratorContext, Pull};
use crate::objects::io::{Compression, path_of};
use bytes::Bytes;
use device::Result;
use std::path::PathBuf;
use std::sync::Arc;

/// The place and the form of a snapshot.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) path: String,
    pub(crate) reader_prefix: String,
    pub(crate) writer_prefix: String,
    /// The fingerprint of the dataset.
    pub(crate) hash: u64,
    pub(crate) compression: Compression,
    /// The function from the dataset of the datasets of the shards to the dataset of their elements.
    pub(crate) reader: CapturedFunction,
    /// The function that returns the number of an element's shard.
    pub(crate) shard: CapturedFunction,
}

impl Snapshot {
    /// Returns the folder of the snapshot below a prefix.
    fn folder(&self, prefix: &str) -> PathBuf {
        path_of(prefixed(prefix, &prefixed(&self.path, &self.hash.to_string())))
    }
}

/// Returns the dataset of the input's elements: the first complete iteration writes them to files, which later
/// iterations read.
pub(crate) fn snapshot(input: Arc<Dataset>, snapshot: Snapshot) -> Result<Arc<Dataset>> {
    let (inner, snapshot) = (input.clone(), Arc::new(snapshot));
    batch_preserving("Snapshot", input.spec.clone(), input.cardinality, &[&input], move |ctx| {
        let (dataset, snapshot) = (inner.clone(), snapshot.clone());
        let state = SnapshotState { dataset, snapshot, ctx: ctx.clone(), pass: None };
        from_state("Snapshot", state, |state, pull| {
            if state.pass.is_none() {
                state.pass = Some(state.begin()?);
            }
            state.pass.as_mut().map_or(Ok(None), |pass| pass.next(pull))
        })
    })
}

/// The state of an iterator over a snapshot.
struct SnapshotState {
    dataset: Arc<Dataset>,
    snapshot: Arc<Snapshot>,
    ctx: IteratorContext,
    /// The iteration in progress; `None` before the first pull.
    pass: Option<SnapshotPass>,
}

/// One iteration over a snapshot.
enum SnapshotPass {
    Reads {
        /// The name of the run that is read.
        run: String,
        state: LoadState,
        /// Number of elements returned so far.
        count: u64,
    },
    Writes {
        input: Box<dyn DatasetIterator>,
        /// The writer of the elements; `None` after the last element or an error of the writer.
        writer: Option<RunWriter>,
    },
}

impl SnapshotPass {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        match self {
            SnapshotPass::Reads { state, count, .. } => {
                let element = state.next(pull)?;
                *count += u64::from(element.is_some());
                Ok(element)
            }
            SnapshotPass::Writes { input, writer } => {
                let element = input.next(pull)?;
                // After an error of the writer the snapshot stays marked as incomplete.
                let Some(mut open) = writer.take() else { return Ok(element) };
                match &element {
                    Some(element) => {
                        open.add(element, pull)?;
                        *writer = Some(open);
                    }
                    None => open.finish()?,
                }
                Ok(element)
            }
        }
    }
}

impl SnapshotState {
    /// Chooses between reading and writing: a snapshot that is not complete is written anew.
    fn begin(&self) -> Result<SnapshotPass> {
        let folder = self.snapshot.folder(&self.snapshot.reader_prefix);
        match Metadata::find(&folder)? {
            Some(metadata) if metadata.is_final => {
                metadata.check_version(RECORDS, &folder)?;
                self.reading(metadata.run)
            }
            _ => {
                let folder = self.snapshot.folder(&self.snapshot.writer_prefix);
                let hash = self.snapshot.hash.to_string();
                let writer = RunWriter::start(folder, hash, &self.dataset, self.new_files()?)?;
                Ok(SnapshotPass::Writes { input: self.dataset.iterator(&self.ctx)?, writer: Some(writer) })
            }
        }
    }

    fn new_files(&self) -> Result<RunFiles> {
        let shard = self.snapshot.shard.instance(&self.ctx)?;
        Ok(RunFiles::new(self.snapshot.compression, Some(shard)))
    }

    fn reading(&self, run: String) -> Result<SnapshotPass> {
        let folder = self.snapshot.folder(&self.snapshot.reader_prefix).join(&run);
        let shards = shards_of(&folder, self.snapshot.compression, &self.dataset.spec)?;
        let reader = self.snapshot.reader.instance(&self.ctx)?;
        Ok(SnapshotPass::Reads { run, state: LoadState::new(shards, reader, self.ctx.clone()), count: 0 })
    }

    /// Makes the iteration of a saved state; `position` is the number of elements read, or of the files to write next.
    fn restored(&self, kind: u64, run: String, position: u64, pull: &Pull) -> Result<Option<SnapshotPass>> {
        if kind != UNBEGUN && kind != ENDED && !is_run_name(&run) {
            return Err(mismatch());
        }
        let input = || self.dataset.iterator(&self.ctx);
        Ok(Some(match kind {
            UNBEGUN => return Ok(None),
            READS => {
                let mut pass = self.reading(run)?;
                // The iterators over the shards belong to the function of the client, so the elements are read again.
                for _ in 0..position {
                    pull.check()?;
                    if pass.next(pull)?.is_none() {
                        return Err(mismatch());
                    }
                }
                pass
            }
            WRITES => {
                let folder = self.snapshot.folder(&self.snapshot.writer_prefix);
                let dtypes = self.dataset.spec.dtypes.clone();
                let hash = self.snapshot.hash.to_string();
                let metadata = Metadata::new(hash, run, RECORDS, dtypes);
                let mut files = self.new_files()?;
                files.chunk = position;
                SnapshotPass::Writes {
                    input: input()?,
                    writer: Some(RunWriter::resume(folder, metadata, files)?),
                }
            }
            ENDED => SnapshotPass::Writes { input: input()?, writer: None },
            _ => return Err(mismatch()),
        }))
    }
}

/// The numbers of the kinds of passes in saved states.
const UNBEGUN: u64 = 0;
const READS: u64 = 1;
const WRITES: u64 = 2;
/// A pass that writes no more, because the files are complete or could not be written.
const ENDED: u64 = 3;

impl ExchangedState for SnapshotState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        let (mut kind, run, mut position) = match &mut self.pass {
            None => (UNBEGUN, String::new(), 0),
            Some(SnapshotPass::Reads { run, count, .. }) => (READS, run.clone(), *count),
            Some(SnapshotPass::Writes { writer, .. }) => {
                // The elements after the saved state go to new files, which a restored iterator replaces. If the files
                // cannot be closed, the snapshot stays marked as incomplete.
                if !exchange.is_restoring()
                    && let Some(mut open) = writer.take()
                {
                    open.files.close()?;
                    *writer = Some(open);
                }
                match writer {
                    Some(writer) => (WRITES, writer.run().to_owned(), writer.files.chunk),
                    None => (ENDED, String::new(), 0),
                }
            }
        };
        exchange.value(&mut kind)?;
        let mut run = Bytes::from(run);
        exchange.value(&mut run)?;
        exchange.value(&mut position)?;
        if exchange.is_restoring() {
            let run = String::from_utf8(run.to_vec()).map_err(|_| mismatch())?;
            self.pass = self.restored(kind, run, position, exchange.pull())?;
        }
        match &mut self.pass {
            None | Some(SnapshotPass::Reads { .. }) => Ok(()),
            Some(SnapshotPass::Writes { input, writer }) => {
                if let Some(shard) = writer.as_ref().and_then(|writer| writer.files.shard()) {
                    exchange.function(shard)?;
                }
                input.exchange(exchange)
            }
        }
    }
}
