//! Snapshots of the first version, in files of blocks. The folder of a snapshot is named after the fingerprint of the
//! dataset, or by the client.

use super::block_file::{ElementReader, ElementWriter};
use super::metadata::{BLOCKS, Metadata, now};
use super::prefixed;
use super::reader::names_in;
use super::writer::{create_folder, numbered_files, remove_file};
use crate::numeric::philox::{PhiloxWords, entropy};
use crate::objects::dataset::shuffle::Seeds;
use crate::objects::dataset::state::{ExchangedState, StateExchange, mismatch};
use crate::objects::dataset::transform::{batch_preserving, from_state};
use crate::objects::dataset::{Dataset, DatasetIterator, Element, ElementSpec, IteratorContext, Pull};
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
        // The folder of a named snapshot has the files of the run before.
        numbered_files(&folder)?.iter().try_for_each(|(_, file)| remove_file(file))?;
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
        let (compression, spec) = (snapshot.compression, self.dataset.spec.clone());
        let files = FileSequence { files, compression, spec, current: 0, reader: None };
        Ok(BlockPass::Reads(Box::new(files)))
    }
}

/// The elements of several files, one file after the other.
struct FileSequence {
    files: Vec<PathBuf>,
    compression: Compression,
    /// The dtypes and shapes of the components.
    spec: ElementSpec,
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
                self.spec.check(&ElementSpec::of(&element))?;
                return Ok(Some(element));
            }
            (self.reader, self.current) = (None, self.current + 1);
        }
    }

    /// Opens the current file; returns `None` after the last.
    fn open(&self) -> Result<Option<ElementReader>> {
        let open = |file: &PathBuf| ElementReader::open(file, self.compression, self.spec.dtypes.clone());
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
    /// The writer of the files; `None` after the last element, an error of the writer, or the begin of another run.
    writer: Option<FileWriter>,
    /// The result of the next pull, which is pulled in advance, so that the files are complete when the last element has
    /// been returned; `None` before the first pull.
    next: Option<Result<Option<Element>>>,
}

impl BlockWriting {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        let result = self.next.take().unwrap_or_else(|| self.pull(pull));
        if let Ok(Some(_)) = &result {
            let next = self.pull(pull);
            // The next step pulls again what a cancelled step did not get.
            if next.is_ok() || pull.check().is_ok() {
                self.next = Some(next);
            }
        }
        result
    }

    /// Pulls an element and writes it.
    fn pull(&mut self, pull: &Pull) -> Result<Option<Element>> {
        let element = self.input.next(pull)?;
        // After an error of the writer the snapshot stays marked as incomplete.
        let Some(mut writer) = self.writer.take() else { return Ok(element) };
        match &element {
            Some(element) => self.writer = writer.add(element)?.then_some(writer),
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

    /// Adds an element. Returns false, without adding it, if another run has begun since.
    fn add(&mut self, element: &Element) -> Result<bool> {
        if self.file.as_ref().is_none_or(|file| file.size > self.snapshot.file_size) {
            if !self.is_last_run()? {
                return Ok(false);
            }
            self.begin_file()?;
        }
        self.file.as_mut().map_or(Ok(()), |file| file.write(element))?;
        Ok(true)
    }

    /// Returns whether no other run has begun since this one; runs of a named snapshot have the same name.
    fn is_last_run(&self) -> Result<bool> {
        let last = Metadata::find(&path_of(self.snapshot.folder()))?;
        let this = &self.metadata;
        Ok(last.is_some_and(|last| last.run == this.run && last.created == this.created))
    }

    /// Closes the last file. The snapshot is complete unless another run has begun since.
    fn finish(mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            file.finish()?;
        }
        if !self.is_last_run()? {
            return Ok(());
        }
        self.metadata.is_final = true;
        self.metadata.write(&path_of(self.snapshot.folder()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::dataset::map::map;
    use crate::objects::dataset::tests::{integers, of_number, range};
    use crate::testing::TempDir;
    use graph::Tensor;

    /// Returns a named snapshot of a dataset in a folder, with a file for each element.
    fn snapshot(input: Arc<Dataset>, dir: &TempDir, mode: BlockSnapshotMode) -> Result<Arc<Dataset>> {
        let snapshot = BlockSnapshot {
            path: dir.path().display().to_string(),
            reader_prefix: String::new(),
            writer_prefix: String::new(),
            hash: 1,
            name: "n".to_owned(),
            compression: Compression::None,
            file_size: 0,
            expiry: 1000,
            shuffle: None,
            mode,
        };
        block_snapshot(input, snapshot)
    }

    fn iterate(dataset: &Arc<Dataset>) -> Result<Box<dyn DatasetIterator>> {
        dataset.iterator(&IteratorContext::root(None))
    }

    /// Returns the numbers and the codes of the errors up to the end.
    fn all(iterator: &mut dyn DatasetIterator) -> Result<Vec<Result<i64, Code>>> {
        let mut found = Vec::new();
        loop {
            match iterator.next(&Pull::default()) {
                Ok(Some(element)) => found.push(Ok(element[0].item()?)),
                Ok(None) => return Ok(found),
                Err(error) => found.push(Err(error.code())),
            }
        }
    }

    #[test]
    fn runs_of_a_named_snapshot_do_not_mix() -> Result<()> {
        let dir = TempDir::new()?;
        let mut first = iterate(&snapshot(range(9)?, &dir, BlockSnapshotMode::Write)?)?;
        for _ in 0..5 {
            first.next(&Pull::default())?;
        }
        let mut second = iterate(&snapshot(range(2)?, &dir, BlockSnapshotMode::Write)?)?;
        assert_eq!(all(&mut *second)?, [Ok(0), Ok(1)]);
        assert_eq!(all(&mut *first)?, [5, 6, 7, 8].map(Ok));
        let mut read = iterate(&snapshot(range(5)?, &dir, BlockSnapshotMode::Auto)?)?;
        assert_eq!(all(&mut *read)?, [Ok(0), Ok(1)]);
        Ok(())
    }

    #[test]
    fn an_error_of_the_input_follows_the_element_before_it() -> Result<()> {
        let dir = TempDir::new()?;
        let failing = of_number(|x| match x {
            2 => Err(Error::invalid("bad".to_owned())),
            x => Ok(Tensor::scalar(x)),
        });
        let input = map(range(4)?, failing, integers(), true)?;
        let mut written = iterate(&snapshot(input, &dir, BlockSnapshotMode::Write)?)?;
        assert_eq!(all(&mut *written)?, [Ok(0), Ok(1), Err(Code::InvalidArgument), Ok(3)]);
        Ok(())
    }

    #[test]
    fn the_shapes_of_stored_elements_are_checked() -> Result<()> {
        let dir = TempDir::new()?;
        all(&mut *iterate(&snapshot(range(1)?, &dir, BlockSnapshotMode::Write)?)?)?;
        let vectors = ElementSpec { shapes: vec![graph::PartialShape::of_dims([Some(2)])], ..integers() };
        let input = map(range(1)?, of_number(|x| Ok(Tensor::vector(&[x, x])?)), vectors, true)?;
        let mut read = iterate(&snapshot(input, &dir, BlockSnapshotMode::Read)?)?;
        assert_eq!(all(&mut *read)?, [Err(Code::InvalidArgument)]);
        Ok(())
    }
}
