//! Kernels that save tensors to checkpoint files and restore them.

mod remap;
mod snapshot;

use super::file::scalar_string;
use crate::objects::io::{blocking, path_of};
use bytes::Bytes;
use checkpoint::bundle::{self, Content, MergeOptions};
use checkpoint::{SliceSpec, legacy, store};
use device::kernel::{AsyncContext, Kernel, KernelContext, KernelDef, KernelInit};
use device::value::Value;
use device::{Error, Result};
use graph::{DType, Shape, Tensor};
use smallvec::{SmallVec, smallvec};
use std::path::PathBuf;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("SaveV2", &[], |_| blocking(save)),
    KernelDef::of("RestoreV2", &[], |init| {
        let dtypes = init.attr::<Vec<DType>>("dtypes")?;
        blocking(move |ctx| restore(ctx, &dtypes))
    }),
    KernelDef::of("MergeV2Checkpoints", &[], |init| {
        let options = MergeOptions {
            delete_old_dirs: init.attr("delete_old_dirs")?,
            allow_missing_files: init.attr("allow_missing_files")?,
        };
        blocking(move |ctx| {
            let prefixes: Vec<PathBuf> = ctx.input(0)?.as_strings()?.iter().map(path_of).collect();
            bundle::merge(&prefixes, path_of(scalar_string(ctx.input(1)?, "destination_prefix")?), options)?;
            Ok(SmallVec::new())
        })
    }),
    KernelDef::of("SetAsideVariable", &[], snapshot::take_snapshot),
    KernelDef::of("KeepSnapshot", &[], snapshot::keep),
    KernelDef::of("SaveSnapshot", &[], snapshot::save),
    KernelDef::of("ShardedFilename", &[], |_| Kernel::sync(|ctx| sharded_name(ctx, Some(1)))),
    KernelDef::of("ShardedFilespec", &[], |_| Kernel::sync(|ctx| sharded_name(ctx, None))),
    KernelDef::of("GenerateVocabRemapping", &[], remap::vocabulary_remapping),
    KernelDef::of("LoadAndRemapMatrix", &[], remap::matrix),
    KernelDef::of("Save", &[], |_| blocking(|ctx| save_legacy(ctx, false))),
    KernelDef::of("SaveSlices", &[], |_| blocking(|ctx| save_legacy(ctx, true))),
    KernelDef::of("Restore", &[], |init| restore_legacy(init, false)),
    KernelDef::of("RestoreSlice", &[], |init| restore_legacy(init, true)),
];

/// Returns the tensor names in input 1 and the slice specs in input 2, one spec per name; an empty spec means the whole
/// tensor.
fn names_and_slices(ctx: &AsyncContext) -> Result<(&[Bytes], &[Bytes])> {
    let (names, slices) = (ctx.input(1)?, ctx.input(2)?);
    if names.shape().rank() != 1 || slices.shape().rank() != 1 {
        device::invalid!(
            "Input tensor_names and shape_and_slices should be an 1-D tensors, got {} and {} instead.",
            names.shape(),
            slices.shape()
        );
    }
    if names.num_elements() != slices.num_elements() {
        device::invalid!(
            "tensor_names and shape_and_slices have different number of elements: {} vs. {}",
            names.num_elements(),
            slices.num_elements()
        );
    }
    Ok((names.as_strings()?, slices.as_strings()?))
}

/// Returns the checkpoint prefix in input 0.
fn prefix(ctx: &AsyncContext) -> Result<PathBuf> {
    let prefix = ctx.input(0)?;
    match prefix.as_strings()? {
        [prefix] => Ok(path_of(prefix)),
        many => Err(Error::invalid(format!(
            "Input prefix should have a single element, got {} instead.",
            many.len()
        ))),
    }
}

/// Parses a slice spec; returns `None` if the spec is empty, which means the whole tensor.
fn parse_spec(slice: &Bytes) -> Result<Option<SliceSpec>> {
    if slice.is_empty() { Ok(None) } else { Ok(Some(SliceSpec::parse(&String::from_utf8_lossy(slice))?)) }
}

/// Parses the slice spec of a tensor that is saved and checks it against the tensor's shape.
fn checked_spec(slice: &Bytes, shape: &Shape) -> Result<Option<SliceSpec>> {
    let spec = parse_spec(slice)?;
    if let Some(spec) = &spec
        && spec.slice_shape()? != *shape
    {
        device::invalid!(
            "Slice in shape_and_slice specification does not match the shape of the tensor to  save: {}, tensor: {}",
            String::from_utf8_lossy(slice),
            shape
        );
    }
    Ok(spec)
}

fn save(ctx: &mut AsyncContext) -> Result<SmallVec<[Value; 4]>> {
    let prefix = prefix(ctx)?;
    // The inputs are dropped below, so that a variable need not copy its value for an update while the value is being
    // written.
    let tensors = (3..ctx.inputs.len()).map(|i| ctx.input(i).cloned()).collect::<Result<Vec<_>>>()?;
    ctx.inputs.truncate(3);
    write(ctx, tensors, || bundle::Writer::create(prefix))?;
    Ok(SmallVec::new())
}

/// Writes each of `contents` to a bundle under its name in input 1, and drops it once it is written.
fn write<C: Content>(
    ctx: &AsyncContext,
    contents: Vec<C>,
    create: impl FnOnce() -> checkpoint::Result<bundle::Writer>,
) -> Result<()> {
    let (names, slices) = names_and_slices(ctx)?;
    check_count(names.len(), contents.len())?;
    let mut writer = create()?;
    for ((name, slice), content) in names.iter().zip(slices).zip(contents) {
        ctx.step.cancellation.check()?;
        match checked_spec(slice, content.shape())? {
            Some(spec) => writer.add_slice(name, &spec, &content)?,
            None => writer.add(name, &content)?,
        }
    }
    Ok(writer.finish()?)
}

/// Checks that the number of names equals the number of tensors.
fn check_count(names: usize, tensors: usize) -> Result<()> {
    if names != tensors {
        device::invalid!("Got {names} tensor names but {tensors} tensors.");
    }
    Ok(())
}

/// `RestoreV2`: reads from a bundle, or from a checkpoint of the V1 format if there is no bundle, like in TensorFlow.
fn restore(ctx: &mut AsyncContext, dtypes: &[DType]) -> Result<SmallVec<[Value; 4]>> {
    let prefix = prefix(ctx)?;
    let (names, slices) = names_and_slices(ctx)?;
    if names.len() != dtypes.len() {
        device::invalid!("Got {} tensor names, but {} expected dtypes.", names.len(), dtypes.len());
    }
    let requests = || names.iter().zip(slices).zip(dtypes);
    if !store::exists(bundle::index_file(&prefix))? {
        let mut reader = legacy::Reader::open(&prefix.to_string_lossy())?;
        let read = |((name, slice), &dtype): ((&Bytes, &Bytes), &DType)| {
            ctx.step.cancellation.check()?;
            Ok(read_legacy(&mut reader, name, parse_spec(slice)?, dtype)?.into())
        };
        return requests().map(read).collect();
    }
    let mut reader = bundle::Reader::open(&prefix)?;
    for ((name, _), &dtype) in requests() {
        let stored = reader.lookup(name)?.0;
        if stored != dtype {
            device::invalid!(
                "tensor_name = {}; expected dtype {} does not equal original dtype {}",
                String::from_utf8_lossy(name),
                dtype,
                stored
            );
        }
    }
    let read = |(name, slice): (&Bytes, &Bytes)| {
        ctx.step.cancellation.check()?;
        Ok(match parse_spec(slice)? {
            Some(spec) => reader.read_slice(name, &spec)?,
            None => reader.read(name)?,
        }
        .into())
    };
    names.iter().zip(slices).map(read).collect()
}

/// Sets output 0 to the file name of a shard, or to the pattern of all shards if `shard` is `None`.
fn sharded_name(ctx: &mut KernelContext<'_>, shard: Option<usize>) -> Result<()> {
    let base = String::from_utf8_lossy(scalar_string(ctx.input(0)?, "basename")?).into_owned();
    let last = ctx.num_inputs() - 1;
    let number = |i: usize, what: &str| {
        let tensor = ctx.input(i)?;
        match (tensor.shape().rank(), tensor.values::<i32>()?) {
            (0, &[number]) => Ok(number),
            _ => Err(Error::invalid(format!("{what} must be a scalar, got shape {}", tensor.shape()))),
        }
    };
    let shards = number(last, "num_shards")?;
    let name = match shard {
        Some(i) => format!("{base}-{:05}-of-{shards:05}", number(i, "shard")?),
        None => format!("{base}-?????-of-{shards:05}"),
    };
    ctx.set_output(0, Tensor::string(name));
    Ok(())
}

fn save_legacy(ctx: &mut AsyncContext, in_slices: bool) -> Result<SmallVec<[Value; 4]>> {
    let path = path_of(scalar_string(ctx.input(0)?, "filename")?);
    let whole = Bytes::new();
    let (names, slices) = match in_slices {
        true => names_and_slices(ctx)?,
        false => (ctx.input(1)?.as_strings()?, &[][..]),
    };
    let first = 2 + usize::from(in_slices);
    check_count(names.len(), ctx.inputs.len().saturating_sub(first))?;
    let item = |(i, name): (usize, &Bytes)| {
        let tensor = ctx.input(i + first)?;
        let spec = checked_spec(slices.get(i).unwrap_or(&whole), tensor.shape())?;
        Ok((name.clone(), spec, tensor.clone()))
    };
    let items = names.iter().enumerate().map(item).collect::<Result<Vec<_>>>()?;
    let items: Vec<legacy::Item<'_>> =
        items.iter().map(|(name, spec, tensor)| legacy::Item { name, spec: spec.clone(), tensor }).collect();
    legacy::write(path, &items)?;
    Ok(SmallVec::new())
}

fn restore_legacy(init: &KernelInit<'_>, in_slices: bool) -> Result<Kernel> {
    let dtype = init.attr::<DType>("dt")?;
    blocking(move |ctx| {
        let pattern = String::from_utf8_lossy(single(ctx, 0, "file_pattern")?).into_owned();
        let name = single(ctx, 1, "tensor_name")?;
        let spec = if in_slices { parse_spec(single(ctx, 2, "shape_and_slice")?)? } else { None };
        let mut reader = legacy::Reader::open(&pattern)?;
        Ok(smallvec![read_legacy(&mut reader, name, spec, dtype)?.into()])
    })
}

fn single<'a>(ctx: &'a AsyncContext, i: usize, what: &str) -> Result<&'a Bytes> {
    match ctx.input(i)?.as_strings()? {
        [one] => Ok(one),
        many => Err(Error::invalid(format!(
            "Input {i} ({what}) must be a string scalar; got a tensor of size {}",
            many.len()
        ))),
    }
}

/// Reads a tensor, or a slice of it, from a checkpoint of the V1 format.
fn read_legacy(
    reader: &mut legacy::Reader,
    name: &Bytes,
    spec: Option<SliceSpec>,
    dtype: DType,
) -> Result<Tensor> {
    let stored = reader.lookup(name)?.0;
    if stored != dtype {
        device::invalid!(
            "Expected to restore a tensor of type {dtype}, got a tensor of type {stored} instead: tensor_name = {}",
            String::from_utf8_lossy(name)
        );
    }
    Ok(match spec {
        Some(spec) => reader.read_slice(name, &spec)?,
        None => reader.read(name)?,
    })
}

#[cfg(test)]
mod tests;
