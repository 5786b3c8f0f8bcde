//! Kernels that save datasets to files and load them.

use super::iterator::dataset_thread_kernel;
use crate::objects::dataset::argument::{
    captured, count, dataset, dataset_kernel, function, integer, spec, string,
};
use crate::objects::dataset::function::{CapturedFunction, ElementFunction};
use crate::objects::dataset::shuffle::Seeds;
use crate::objects::dataset::source::Elements;
use crate::objects::dataset::storage::{
    BlockSnapshot, BlockSnapshotMode, Save, Snapshot, block_snapshot, chunk_names, compression_of, load,
    saved, snapshot, stored_chunk, stored_shard,
};
use crate::objects::dataset::{DatasetVariant, Pull};
use crate::objects::io::{Compression, path_of};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::fingerprint::{combine, hash64};
use smallvec::SmallVec;
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("SaveDataset", &[], save),
    KernelDef::of("SaveDatasetV2", &[], |init| {
        let (shard, compression) =
            (shard_function(init)?, compression_of(&init.attr::<String>("compression")?)?);
        dataset_kernel(init, move |ctx| {
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
        dataset_kernel(init, move |ctx| {
            let folder = path_of(string(ctx, 0, "path")?);
            load(&folder, compression, captured(ctx, &reader, 1..ctx.num_inputs())?, spec.clone())
        })
    }),
    KernelDef::of("SnapshotDataset", &[], first_snapshot),
    KernelDef::of("SnapshotDatasetV2", &[], |init| {
        let compression = match &*init.attr::<String>("compression")? {
            "AUTO" => "SNAPPY".to_owned(),
            name => name.to_owned(),
        };
        let known_hash = match init.attr::<bool>("hash_valid")? {
            true => Some(init.attr::<i64>("hash")? as u64),
            false => None,
        };
        let (reader, shard) = (function(init, "reader_func")?, function(init, "shard_func")?);
        let (reader_prefix, writer_prefix) =
            (init.attr::<String>("reader_prefix")?, init.attr::<String>("writer_prefix")?);
        let (readers, form) = (count(init, "Treader_func_args")?, compression_of(&compression)?);
        dataset_kernel(init, move |ctx| {
            let input = dataset(ctx, 0)?;
            let hash = match known_hash {
                Some(hash) => hash,
                None => combine(input.fingerprint()?, hash64(compression.as_bytes())),
            };
            let stored = Snapshot {
                path: text(ctx, 1, "path")?,
                reader_prefix: reader_prefix.clone(),
                writer_prefix: writer_prefix.clone(),
                hash,
                compression: form,
                reader: captured(ctx, &reader, 2..2 + readers)?,
                shard: captured(ctx, &shard, 2 + readers..ctx.num_inputs())?,
            };
            snapshot(input, stored)
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
        dataset_kernel(init, move |ctx| {
            let start = integer(ctx, 1, "start_index")?.max(0) as u64;
            stored_shard(path_of(string(ctx, 0, "shard_dir")?), start, compression, spec.clone())
        })
    }),
    KernelDef::of("SnapshotNestedDatasetReader", &[], |init| {
        let spec = spec(init)?;
        dataset_kernel(init, move |ctx| {
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
        dataset_kernel(init, move |ctx| {
            stored_chunk(path_of(string(ctx, 0, "chunk_file")?), compression, spec.clone())
        })
    }),
    KernelDef::of("ListSnapshotChunksDataset", &[], |init| {
        dataset_kernel(init, |ctx| chunk_names(path_of(string(ctx, 0, "snapshot_path")?)))
    }),
];

/// Returns the UTF-8 text of the scalar in input `i`.
fn text(ctx: &KernelContext<'_>, i: usize, name: &str) -> Result<String> {
    let bytes = string(ctx, i, name)?;
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => device::invalid!("{name} must be UTF-8, got {:?}", String::from_utf8_lossy(&bytes)),
    }
}

/// `SnapshotDataset`: the snapshots of the first version.
fn first_snapshot(init: &KernelInit<'_>) -> Result<Kernel> {
    /// The value that stands for the default of a number.
    const DEFAULT: i64 = -1;
    let number = |name: &str, default: i64| {
        Ok::<i64, Error>(match init.attr::<i64>(name)? {
            DEFAULT => default,
            number => number,
        })
    };
    let name = init.attr::<String>("compression")?;
    let compression = match &*name {
        "" => Compression::None,
        "GZIP" => Compression::Gzip,
        "SNAPPY" => Compression::Snappy,
        _ => device::invalid!("compression must be either '', 'GZIP' or 'SNAPPY'."),
    };
    let expiry = number("pending_snapshot_expiry_seconds", 86_400)?;
    if expiry < 1 {
        device::invalid!("pending_snapshot_expiry_seconds must be at least 1 second.");
    }
    let mode = match &*init.attr::<String>("mode")? {
        "auto" => BlockSnapshotMode::Auto,
        "read" => BlockSnapshotMode::Read,
        "write" => BlockSnapshotMode::Write,
        "passthrough" => BlockSnapshotMode::PassThrough,
        _ => device::invalid!("mode must be either 'auto', 'read', 'write', or 'passthrough'."),
    };
    let seeds = Seeds(init.attr::<i64>("seed")?, init.attr::<i64>("seed2")?);
    let form = BlockSnapshot {
        path: String::new(),
        reader_prefix: init.attr::<String>("reader_path_prefix")?,
        writer_prefix: init.attr::<String>("writer_path_prefix")?,
        hash: 0,
        name: init.attr::<String>("snapshot_name")?,
        compression,
        file_size: number("shard_size_bytes", 10 << 30)? as u64,
        expiry,
        shuffle: init.attr::<bool>("shuffle_on_read")?.then_some(seeds),
        mode,
    };
    dataset_kernel(init, move |ctx| {
        let (input, path) = (dataset(ctx, 0)?, text(ctx, 1, "path")?);
        // The parts of the form that change the files are part of the name of the folder.
        let parts = [&path, &name, &form.reader_prefix, &form.writer_prefix];
        let hash = match &*form.name {
            "" => {
                parts.iter().fold(input.fingerprint()?, |hash, part| combine(hash, hash64(part.as_bytes())))
            }
            name => hash64(name.as_bytes()),
        };
        let hash = combine(hash, form.file_size);
        block_snapshot(input, BlockSnapshot { path, hash, ..form.clone() })
    })
}

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
