//! Writing of datasets to files.

use super::metadata::{Metadata, RECORDS};
use super::{chunk_file, shard_folder};
use crate::numeric::philox::entropy;
use crate::objects::dataset::function::{CapturedFunction, FunctionInstance};
use crate::objects::dataset::transform::{dataset, from_fn};
use crate::objects::dataset::{Dataset, Element, IteratorContext, Pull};
use crate::objects::io::{Compression, RecordWriter};
use device::{Error, Result};
use graph::{DType, Tensor};
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
            // After an error the files stay marked as incomplete.
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
        std::mem::take(&mut self.open).into_values().try_for_each(RecordWriter::finish)
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

    /// Returns the writer that continues the run of this metadata.
    pub(super) fn resume(folder: PathBuf, metadata: Metadata, files: RunFiles) -> RunWriter {
        RunWriter { folder, metadata, files }
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

pub(super) fn create_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|e| Error::from(checkpoint::Error::file(path, &e)))
}
