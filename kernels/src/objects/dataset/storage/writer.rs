//! Writing of datasets to files.

use super::metadata::{Metadata, RECORDS};
use super::reader::names_in;
use super::{check_local, chunk_file, chunk_number, shard_folder};
use crate::numeric::philox::entropy;
use crate::objects::dataset::function::{CapturedFunction, FunctionInstance};
use crate::objects::dataset::transform::{dataset, from_fn};
use crate::objects::dataset::{Dataset, Element, IteratorContext, Pull};
use crate::objects::io::{Compression, RecordWriter};
use device::{Error, Result};
use graph::{Code, DType, Tensor};
use std::collections::BTreeMap;
use std::collections::btree_map;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The place and the form in which a dataset is saved.
#[derive(Clone, Debug)]
pub(crate) struct Save {
    pub(crate) folder: PathBuf,
    pub(crate) compression: Compression,
    /// The function that returns the number of an element's shard; `None` for a single shard.
    pub(crate) shard: Option<CapturedFunction>,
}

impl Save {
    /// Writes all elements of `input` to files, and returns after the last.
    ///
    /// # Errors
    /// The errors of the input, of the function and of the files.
    pub(crate) fn run(&self, input: &Arc<Dataset>, pull: &Pull) -> Result<()> {
        let ctx = IteratorContext::root(input.deterministic);
        let mut iterator = input.iterator(&ctx)?;
        let mut writer = self.writer(input, &ctx.within("Save"))?;
        while let Some(element) = iterator.next(pull)? {
            pull.check()?;
            writer.add(&element, pull)?;
        }
        writer.finish()
    }

    /// Starts a run.
    fn writer(&self, input: &Arc<Dataset>, ctx: &IteratorContext) -> Result<RunWriter> {
        let shard = self.shard.as_ref().map(|shard| shard.instance(ctx)).transpose()?;
        RunWriter::start(self.folder.clone(), String::new(), input, RunFiles::new(self.compression, shard))
    }
}

/// Returns the dataset of the input's elements, which an iterator writes to files when it returns them. The files are
/// complete once the iterator has reached the end.
pub(crate) fn saved(input: Arc<Dataset>, save: Save) -> Result<Arc<Dataset>> {
    let inner = input.clone();
    dataset("SaveV2", input.spec.clone(), input.cardinality, &[&input], move |ctx| {
        let mut iterator = inner.iterator(ctx)?;
        let mut writer = Some(save.writer(&inner, ctx)?);
        from_fn("SaveV2", move |pull| {
            let element = iterator.next(pull)?;
            // After an error of the writer the files stay marked as incomplete.
            let Some(mut open) = writer.take() else { return Ok(element) };
            match &element {
                Some(element) => {
                    open.add(element, pull)?;
                    writer = Some(open);
                }
                None => open.finish()?,
            }
            Ok(element)
        })
    })
}

/// The files of a run that are being written.
pub(super) struct RunFiles {
    compression: Compression,
    /// The function that returns the number of an element's shard; `None` for a single shard.
    shard: Option<FunctionInstance>,
    /// The number of the files that are opened next.
    pub(super) chunk: u64,
    /// The open file of each shard.
    open: BTreeMap<i64, RecordWriter>,
}

impl RunFiles {
    pub(super) fn new(compression: Compression, shard: Option<FunctionInstance>) -> RunFiles {
        RunFiles { compression, shard, chunk: 0, open: BTreeMap::new() }
    }

    /// Returns the function that returns the number of an element's shard.
    pub(super) fn shard(&self) -> Option<&FunctionInstance> {
        self.shard.as_ref()
    }

    /// Closes the open files. Further elements are written to new files.
    pub(super) fn close(&mut self) -> Result<()> {
        self.chunk += u64::from(!self.open.is_empty());
        std::mem::take(&mut self.open).into_values().try_for_each(RecordWriter::finish_stored)
    }

    /// Adds an element to its shard in the folder `run`.
    fn add(&mut self, run: &Path, element: &Element, pull: &Pull) -> Result<()> {
        let shard = match &self.shard {
            Some(function) => shard_of(&function.call(pull, element.clone())?)?,
            None => 0,
        };
        let records = element.iter().map(checkpoint::tensor::encode_content);
        let records = records.collect::<checkpoint::Result<Vec<_>>>()?;
        let writer = match self.open.entry(shard) {
            btree_map::Entry::Occupied(entry) => entry.into_mut(),
            btree_map::Entry::Vacant(entry) => {
                let folder = shard_folder(run, shard);
                create_folder(&folder)?;
                fill_numbers(&folder, self.chunk, self.compression)?;
                entry.insert(RecordWriter::create(chunk_file(&folder, self.chunk), self.compression)?)
            }
        };
        records.iter().try_for_each(|record| writer.write(record))
    }
}

/// The writer of one run.
pub(super) struct RunWriter {
    folder: PathBuf,
    metadata: Metadata,
    pub(super) files: RunFiles,
}

impl RunWriter {
    /// Makes the folder of a new run, and writes the metadata of a dataset that is not complete.
    pub(super) fn start(
        folder: PathBuf,
        graph_hash: String,
        input: &Arc<Dataset>,
        files: RunFiles,
    ) -> Result<RunWriter> {
        let metadata = Metadata::new(graph_hash, entropy().to_string(), RECORDS, input.spec.dtypes.clone());
        create_folder(&folder.join(&metadata.run))?;
        metadata.write(&folder)?;
        Ok(RunWriter { folder, metadata, files })
    }

    /// Returns the writer that continues the run of this metadata with the files of number `files.chunk`. The dataset
    /// counts as incomplete again, and the files of the run from that number on, which were written after the state was
    /// saved, are removed.
    ///
    /// # Errors
    /// `FailedPrecondition` if the folder lacks the files that were written before the state was saved.
    pub(super) fn resume(folder: PathBuf, metadata: Metadata, files: RunFiles) -> Result<RunWriter> {
        let run = folder.join(&metadata.run);
        let mut written = Vec::new();
        for shard in names_in(&run)?.into_iter().filter(|name| name.ends_with(".shard")) {
            written.extend(numbered_files(&run.join(shard))?);
        }
        let has_number = |number| written.iter().any(|(written, _)| *written == number);
        if files.chunk.checked_sub(1).is_some_and(|last| !has_number(last)) {
            let message = format!(
                "{} lacks the files that the iterator wrote before its state was saved; restore the folder too, or \
                 iterate from the start",
                run.display()
            );
            return Err(Error::new(Code::FailedPrecondition, message));
        }
        create_folder(&run)?;
        metadata.write(&folder)?;
        let stale = written.iter().filter(|(number, _)| *number >= files.chunk);
        stale.map(|(_, file)| file).try_for_each(|file| remove_file(file))?;
        Ok(RunWriter { folder, metadata, files })
    }

    /// Returns the name of the run.
    pub(super) fn run(&self) -> &str {
        &self.metadata.run
    }

    /// Adds an element to its shard.
    ///
    /// # Errors
    /// `InvalidArgument` if the function does not return a number; `Unimplemented` if a component is an object.
    pub(super) fn add(&mut self, element: &Element, pull: &Pull) -> Result<()> {
        self.files.add(&self.folder.join(&self.metadata.run), element, pull)?;
        // TensorFlow does not count the elements of snapshots.
        self.metadata.elements += i64::from(self.metadata.graph_hash.is_empty());
        Ok(())
    }

    /// Closes the files and writes the metadata of the complete dataset.
    pub(super) fn finish(mut self) -> Result<()> {
        self.files.close()?;
        self.metadata.is_final = true;
        self.metadata.write(&self.folder)
    }
}

/// Returns the number of a shard that a function returned.
fn shard_of(results: &[Tensor]) -> Result<i64> {
    match results {
        [shard] if shard.dtype() == DType::Int64 && shard.num_elements() == 1 => Ok(shard.item::<i64>()?),
        _ => device::invalid!("`shard_func` must return a scalar int64."),
    }
}

/// Creates empty files for the numbers before `chunk` that a shard lacks, because a reader stops at the first number
/// without a file. TensorFlow's reader does too.
fn fill_numbers(shard: &Path, chunk: u64, compression: Compression) -> Result<()> {
    let last = (0..chunk).rev().find(|number| chunk_file(shard, *number).exists());
    for number in last.map_or(0, |last| last + 1)..chunk {
        RecordWriter::create(chunk_file(shard, number), compression)?.finish_stored()?;
    }
    Ok(())
}

/// Returns the numbered files in a folder with their numbers.
pub(super) fn numbered_files(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let numbered = |name: String| Some((chunk_number(&name)?, folder.join(name)));
    Ok(names_in(folder)?.into_iter().filter_map(numbered).collect())
}

pub(super) fn remove_file(path: &Path) -> Result<()> {
    std::fs::remove_file(path).map_err(|e| Error::from(checkpoint::Error::file(path, &e)))
}

/// Creates a folder and those around it.
///
/// # Errors
/// `Unimplemented` if the folder is in a remote store.
pub(super) fn create_folder(path: &Path) -> Result<()> {
    check_local(path)?;
    std::fs::create_dir_all(path).map_err(|e| Error::from(checkpoint::Error::file(path, &e)))
}
