//! Snapshots of the first version, in files of blocks. The folder of a snapshot is named after the fingerprint of the
//! dataset, or by the client.

use super::block_file::{ElementReader, ElementWriter};
use super::metadata::{BLOCKS, Metadata, now};
use super::prefixed;
use super::reader::names_in;
use super::writer::create_folder;
use crate::numeric::philox::{PhiloxWords, entropy};
use crate::objects::dataset::shuffle::Seeds;
use crate::objects::dataset::state::{ExchangedState, StateExchange, mismatch};
use crate::objects::dataset::transform::{batch_preserving, from_state};
use crate::objects::dataset::{Dataset, DatasetIterator, Element, IteratorContext, Pull};
use crate::objects::io::{Compression, path_of};
use device::{Error, Result};
use graph::Code;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The client's choice between reading and writing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BlockSnapshotMode {
    /// A complete snapshot is read. If another iterator writes it, the elements of the input are passed on.
    Auto,
    Read,
    Write,
    PassThrough,
}

/// The place and the form of a snapshot of the first version.
#[derive(Clone, Debug)]
pub(crate) struct BlockSnapshot {
    pub(crate) path: String,
    pub(crate) reader_prefix: String,
    pub(crate) writer_prefix: String,
    /// The fingerprint of the dataset and of the form of the snapshot.
    pub(crate) hash: u64,
    /// The name that the client gave the snapshot; the fingerprint is the name if it is empty.
    pub(crate) name: String,
    pub(crate) compression: Compression,
    /// Number of bytes at which a new file is begun.
    pub(crate) file_size: u64,
    /// Seconds after which a snapshot that is not complete is written anew.
    pub(crate) expiry: i64,
    /// The seeds of the order of the files; `None` for the order in which they were written.
    pub(crate) shuffle: Option<Seeds>,
    pub(crate) mode: BlockSnapshotMode,
}

impl BlockSnapshot {
    /// Returns the fingerprint as text.
    fn hash_text(&self) -> String {
        format!("{:016x}", self.hash)
    }

    /// Returns the folder of the snapshot.
    fn folder(&self) -> String {
        match &*self.name {
            "" => prefixed(&self.path, &self.hash_text()),
            name => prefixed(&self.path, &format!("custom-{name}")),
        }
    }
}

/// Returns the dataset of the input's elements, which are written to files or read from them.
pub(crate) fn block_snapshot(input: Arc<Dataset>, snapshot: BlockSnapshot) -> Result<Arc<Dataset>> {
    let inner = input.clone();
    batch_preserving("Snapshot", input.spec.clone(), input.cardinality, &[&input], move |ctx| {
        let (dataset, snapshot) = (inner.clone(), snapshot.clone());
        let state = BlockState { dataset, snapshot, ctx: ctx.clone(), pass: None };
        from_state("Snapshot", state, |state, pull| {
            if state.pass.is_none() {
                state.pass = Some(state.begin()?);
            }
            state.pass.as_mut().map_or(Ok(None), |pass| pass.next(pull))
        })
    })
}

/// The state of an iterator over a snapshot.
struct BlockState {
    dataset: Arc<Dataset>,
    snapshot: BlockSnapshot,
    ctx: IteratorContext,
    /// The iteration in progress; `None` before the first pull.
    pass: Option<BlockPass>,
}

/// One iteration over a snapshot.
enum BlockPass {
    Reads(Box<FileSequence>),
    Writes(Box<BlockWriting>),
    Passes(Box<dyn DatasetIterator>),
}

impl BlockPass {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        match self {
            BlockPass::Reads(files) => files.next(pull),
            BlockPass::Writes(writing) => writing.next(pull),
            BlockPass::Passes(input) => input.next(pull),
        }
    }
}

impl BlockState {
    fn begin(&self) -> Result<BlockPass> {
        let BlockSnapshot { mode, expiry, .. } = self.snapshot;
        let metadata = Metadata::find(&path_of(self.snapshot.folder()))?;
        match (mode, metadata) {
            (BlockSnapshotMode::Read, None) => {
                Err(Error::new(Code::NotFound, "Metadata file does not exist."))
            }
            (BlockSnapshotMode::Read, Some(metadata)) => self.reading(&metadata),
            (BlockSnapshotMode::Auto, Some(metadata)) if metadata.is_final => self.reading(&metadata),
            (BlockSnapshotMode::PassThrough, _) => Ok(BlockPass::Passes(self.dataset.iterator(&self.ctx)?)),
            (BlockSnapshotMode::Auto, Some(metadata))
                if now().saturating_sub(metadata.created) <= expiry.saturating_mul(1_000_000) =>
            {
                Ok(BlockPass::Passes(self.dataset.iterator(&self.ctx)?))
            }
            (BlockSnapshotMode::Auto | BlockSnapshotMode::Write, _) => self.writing(),
        }
    }

    fn writing(&self) -> Result<BlockPass> {
        let snapshot = self.snapshot.clone();
        let run = if snapshot.name.is_empty() { format!("{:04x}", entropy()) } else { "custom".to_owned() };
        let folder = path_of(prefixed(&snapshot.writer_prefix, &format!("{}/{run}", snapshot.folder())));
        create_folder(&folder)?;
        let dtypes = self.dataset.spec.dtypes.clone();
        let metadata = Metadata::new(snapshot.hash_text(), run, BLOCKS, dtypes);
        metadata.write(&path_of(snapshot.folder()))?;
        let input = self.dataset.iterator(&self.ctx)?;
        let mut writer = FileWriter { snapshot, folder, metadata, file: None, count: 0 };
        writer.begin_file()?;
        let writing = BlockWriting { input, writer: Some(writer), next: None };
        Ok(BlockPass::Writes(Box::new(writing)))
    }

    fn reading(&self, metadata: &Metadata) -> Result<BlockPass> {
        let snapshot = &self.snapshot;
        metadata.check_version(BLOCKS, &path_of(snapshot.folder()))?;
        let dtypes = &self.dataset.spec.dtypes;
        if metadata.dtypes != *dtypes {
            let message = format!(
                "the snapshot in {} has components of {:?}, but the dataset of {dtypes:?}",
                snapshot.folder(),
                metadata.dtypes
            );
            return Err(Error::internal(message));
        }
        let run = if snapshot.name.is_empty() { &*metadata.run } else { "custom" };
        let folder = format!("{}/{run}", snapshot.folder());
        let mut files: Vec<String> =
            names_in(&path_of(&folder))?.iter().map(|name| format!("{folder}/{name}")).collect();
        if files.is_empty() {
            return Err(Error::new(Code::NotFound, format!("Could not find any files in dir: {folder}")));
        }
        if let Some(seeds) = snapshot.shuffle {
            let mut words = PhiloxWords::new(seeds.or_random().stream());
            for last in (1..files.len()).rev() {
                files.swap(last, words.next() as usize % (last + 1));
            }
        }
        let files = files.iter().map(|file| path_of(prefixed(&snapshot.reader_prefix, file))).collect();
        let (compression, dtypes) = (snapshot.compression, dtypes.clone());
        let files = FileSequence { files, compression, dtypes, current: 0, reader: None };
        Ok(BlockPass::Reads(Box::new(files)))
    }
}

/// The elements of several files, one file after the other.
struct FileSequence {
    files: Vec<PathBuf>,
    compression: Compression,
    dtypes: Vec<graph::DType>,
    /// The index of the file that is open or that is opened next.
    current: usize,
    reader: Option<ElementReader>,
}

impl FileSequence {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        loop {
            pull.check()?;
            let reader = match &mut self.reader {
                Some(reader) => reader,
                None => match self.open()? {
                    Some(reader) => self.reader.insert(reader),
                    None => return Ok(None),
                },
            };
            if let Some(element) = reader.next_element()? {
                return Ok(Some(element));
            }
            (self.reader, self.current) = (None, self.current + 1);
        }
    }

    /// Opens the current file; returns `None` after the last.
    fn open(&self) -> Result<Option<ElementReader>> {
        let open = |file: &PathBuf| ElementReader::open(file, self.compression, self.dtypes.clone());
        self.files.get(self.current).map(open).transpose()
    }
}

impl ExchangedState for FileSequence {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        let name = |file: &PathBuf| bytes::Bytes::copy_from_slice(file.as_os_str().as_bytes());
        let mut names: Vec<bytes::Bytes> = self.files.iter().map(name).collect();
        exchange.value(&mut names)?;
        exchange.value(&mut self.current)?;
        let mut offset = self.reader.as_ref().map(ElementReader::offset);
        exchange.value(&mut offset)?;
        if exchange.is_restoring() {
            // The saved files are those of the snapshot, in their shuffled order.
            let mut known = self.files.clone();
            self.files = names.into_iter().map(path_of).collect();
            let mut saved = self.files.clone();
            known.sort();
            saved.sort();
            if known != saved {
                return Err(mismatch());
            }
            self.reader = None;
            if let Some(offset) = offset {
                self.reader = self.open()?;
                self.reader.as_mut().ok_or_else(mismatch)?.advance_to(offset)?;
            }
        }
        Ok(())
    }
}

/// The iteration that writes the files.
struct BlockWriting {
    input: Box<dyn DatasetIterator>,
    /// The writer of the files; `None` after the last element or an error.
    writer: Option<FileWriter>,
    /// The result of the next pull, which is pulled in advance, so that the files are complete when the last element has
    /// been returned; `None` before the first pull.
    next: Option<Option<Element>>,
}

impl BlockWriting {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        let element = match self.next.take() {
            Some(element) => element,
            None => self.pull(pull)?,
        };
        if element.is_some() {
            self.next = Some(self.pull(pull)?);
        }
        Ok(element)
    }

    /// Pulls an element and writes it.
    fn pull(&mut self, pull: &Pull) -> Result<Option<Element>> {
        let element = self.input.next(pull)?;
        // After an error the snapshot stays marked as incomplete.
        let Some(mut writer) = self.writer.take() else { return Ok(element) };
        match &element {
            Some(element) => {
                writer.add(element)?;
                self.writer = Some(writer);
            }
            None => writer.finish()?,
        }
        Ok(element)
    }
}

/// The writer of a snapshot's files.
struct FileWriter {
    snapshot: BlockSnapshot,
    /// The folder of the run.
    folder: PathBuf,
    metadata: Metadata,
    file: Option<ElementWriter>,
    /// Number of files begun so far.
    count: u64,
}

impl FileWriter {
    /// Closes the current file and creates the next.
    fn begin_file(&mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            file.finish()?;
        }
        let path = super::chunk_file(&self.folder, self.count);
        self.file = Some(ElementWriter::create(&path, self.snapshot.compression)?);
        self.count += 1;
        Ok(())
    }

    fn add(&mut self, element: &Element) -> Result<()> {
        if self.file.as_ref().is_none_or(|file| file.size > self.snapshot.file_size) {
            self.begin_file()?;
        }
        self.file.as_mut().map_or(Ok(()), |file| file.write(element))
    }

    /// Closes the last file. The snapshot is complete unless another run has begun since.
    fn finish(mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            file.finish()?;
        }
        let folder = path_of(self.snapshot.folder());
        match Metadata::find(&folder)? {
            Some(metadata) if metadata.run == self.metadata.run => {
                self.metadata.is_final = true;
                self.metadata.write(&folder)
            }
            _ => Ok(()),
        }
    }
}

impl ExchangedState for BlockState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        let mut kind = match &self.pass {
            None => 0u64,
            Some(BlockPass::Reads(_)) => 1,
            Some(BlockPass::Passes(_)) => 2,
            Some(BlockPass::Writes(_)) => return Err(exchange.unsupported("Snapshot")),
        };
        exchange.value(&mut kind)?;
        if exchange.is_restoring() {
            let metadata = || Metadata::find(&path_of(self.snapshot.folder()))?.ok_or_else(mismatch);
            self.pass = match kind {
                0 => None,
                1 => Some(self.reading(&metadata()?)?),
                2 => Some(BlockPass::Passes(self.dataset.iterator(&self.ctx)?)),
                _ => return Err(mismatch()),
            };
        }
        match &mut self.pass {
            Some(BlockPass::Reads(files)) => files.exchange(exchange),
            Some(BlockPass::Passes(input)) => input.exchange(exchange),
            _ => Ok(()),
        }
    }
}
