//! Kernels that save datasets to files and load them.

use super::iterator::dataset_thread_kernel;
use crate::objects::dataset::argument::{captured, dataset, dataset_kernel, function, integer, spec, string};
use crate::objects::dataset::function::{CapturedFunction, ElementFunction};
use crate::objects::dataset::source::Elements;
use crate::objects::dataset::storage::{
    Save, chunk_names, compression_of, load, saved, stored_chunk, stored_shard,
};
use crate::objects::dataset::{DatasetVariant, Pull};
use crate::objects::io::path_of;
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::{Error, Result};
use smallvec::SmallVec;
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("SaveDataset", &[], save),
    KernelDef::of("SaveDatasetV2", &[], |init| {
        let (shard, compression) =
            (shard_function(init)?, compression_of(&init.attr::<String>("compression")?)?);
        dataset_kernel(move |ctx| {
            let shard = match &shard {
                Some(function) => Some(captured(ctx, function, 2..ctx.num_inputs())?),
                None => None,
            };
            let folder = path_of(string(ctx, 1, "path")?);
            saved(dataset(ctx, 0)?, Save { folder, compression, shard })
        })
    }),
    KernelDef::of("LoadDataset", &[], |init| {
        let (reader, spec) = (function(init, "reader_func")?, spec(init)?);
        let compression = compression_of(&init.attr::<String>("compression")?)?;
        dataset_kernel(move |ctx| {
            let folder = path_of(string(ctx, 0, "path")?);
            load(&folder, compression, captured(ctx, &reader, 1..ctx.num_inputs())?, spec.clone())
        })
    }),
    KernelDef::of("SnapshotDatasetReader", &[], |init| {
        let (spec, version) = (spec(init)?, init.attr::<i64>("version")?);
        let compression = compression_of(&init.attr::<String>("compression")?)?;
        if version != 2 {
            return Err(Error::unimplemented(format!(
                "a snapshot in version {version} of the format; version 2 is supported"
            )));
        }
        dataset_kernel(move |ctx| {
            let start = integer(ctx, 1, "start_index")?.max(0) as u64;
            stored_shard(path_of(string(ctx, 0, "shard_dir")?), start, compression, spec.clone())
        })
    }),
    KernelDef::of("SnapshotNestedDatasetReader", &[], |init| {
        let spec = spec(init)?;
        dataset_kernel(move |ctx| {
            let inputs = (0..ctx.num_inputs()).map(|i| {
                DatasetVariant::of(ctx.input(i)?)?;
                Ok(vec![ctx.input(i)?.clone()])
            });
            let inputs = inputs.collect::<Result<_>>()?;
            Elements::dataset("SnapshotNestedDatasetReader", spec.clone(), inputs)
        })
    }),
    KernelDef::of("SnapshotChunkDataset", &[], |init| {
        let (spec, compression) = (spec(init)?, compression_of(&init.attr::<String>("compression")?)?);
        dataset_kernel(move |ctx| {
            stored_chunk(path_of(string(ctx, 0, "chunk_file")?), compression, spec.clone())
        })
    }),
    KernelDef::of("ListSnapshotChunksDataset", &[], |_| {
        dataset_kernel(|ctx| chunk_names(path_of(string(ctx, 0, "snapshot_path")?)))
    }),
];

/// Returns the function that chooses the shard of an element, if the node uses it.
fn shard_function(init: &KernelInit<'_>) -> Result<Option<Arc<dyn ElementFunction>>> {
    init.attr::<bool>("use_shard_func")?.then(|| function(init, "shard_func")).transpose()
}

/// `SaveDataset`: writes all elements of the dataset to files.
fn save(init: &KernelInit<'_>) -> Result<Kernel> {
    let (shard, compression) = (shard_function(init)?, compression_of(&init.attr::<String>("compression")?)?);
    dataset_thread_kernel(move |ctx| {
        let dataset = DatasetVariant::of(ctx.input(0)?)?;
        let path = ctx.input(1)?;
        let [path] = path.as_strings()? else { device::invalid!("path must be a scalar") };
        let arguments = (2..ctx.inputs.len()).map(|i| ctx.input(i).cloned()).collect::<Result<Vec<_>>>()?;
        let shard = shard.clone().map(|function| CapturedFunction { function, arguments });
        let pull = Pull { cancellation: ctx.step.cancellation.clone() };
        Save { folder: path_of(path), compression, shard }.run(&dataset, &pull)?;
        Ok(SmallVec::new())
    })
}
