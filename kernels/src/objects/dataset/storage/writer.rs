//! Writing of datasets to files.

use super::metadata::Metadata;
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
use std::time::{SystemTime, UNIX_EPOCH};

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
        let mut writer = SaveWriter::start(self, input, &ctx.within("Save"))?;
        while let Some(element) = iterator.next(pull)? {
            pull.check()?;
            writer.add(&element, pull)?;
        }
        writer.finish()
    }
}

/// Returns the dataset of the input's elements, which an iterator writes to files when it returns them. The files are
/// complete once the iterator has reached the end.
pub(crate) fn saved(input: Arc<Dataset>, save: Save) -> Result<Arc<Dataset>> {
    let inner = input.clone();
    dataset("SaveV2", input.spec.clone(), input.cardinality, &[&input], move |ctx| {
        let mut iterator = inner.iterator(ctx)?;
        let mut writer = Some(SaveWriter::start(&save, &inner, ctx)?);
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

/// The writer of one run.
struct SaveWriter {
    folder: PathBuf,
    run: PathBuf,
    metadata: Metadata,
    compression: Compression,
    shard: Option<FunctionInstance>,
    /// The open file of each shard.
    shards: BTreeMap<i64, RecordWriter>,
}

impl SaveWriter {
    /// Makes the folder of a new run, and writes the metadata of a dataset that is not complete.
    fn start(save: &Save, input: &Arc<Dataset>, ctx: &IteratorContext) -> Result<SaveWriter> {
        let name = entropy().to_string();
        let run = save.folder.join(&name);
        create_folder(&run)?;
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        let metadata = Metadata::new(name, created as i64, input.spec.dtypes.clone());
        metadata.write(&save.folder)?;
        Ok(SaveWriter {
            folder: save.folder.clone(),
            run,
            metadata,
            compression: save.compression,
            shard: save.shard.as_ref().map(|shard| shard.instance(ctx)).transpose()?,
            shards: BTreeMap::new(),
        })
    }

    /// Adds an element to its shard.
    ///
    /// # Errors
    /// `InvalidArgument` if the function does not return a number; `Unimplemented` if a component is an object.
    fn add(&mut self, element: &Element, pull: &Pull) -> Result<()> {
        let shard = match &self.shard {
            Some(function) => shard_of(&function.call(pull, element.clone())?)?,
            None => 0,
        };
        let records = element.iter().map(checkpoint::tensor::encode_content);
        let records = records.collect::<checkpoint::Result<Vec<_>>>()?;
        let writer = match self.shards.entry(shard) {
            btree_map::Entry::Occupied(entry) => entry.into_mut(),
            btree_map::Entry::Vacant(entry) => {
                let folder = shard_folder(&self.run, shard);
                create_folder(&folder)?;
                entry.insert(RecordWriter::create(chunk_file(&folder, 0), self.compression)?)
            }
        };
        for record in records {
            writer.write(&record)?;
        }
        self.metadata.elements += 1;
        Ok(())
    }

    /// Closes the files and writes the metadata of the complete dataset.
    fn finish(mut self) -> Result<()> {
        for writer in std::mem::take(&mut self.shards).into_values() {
            writer.finish()?;
        }
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

fn create_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|e| Error::from(checkpoint::Error::file(path, &e)))
}
