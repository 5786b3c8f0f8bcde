//! Kernels of maps from tensors to tensors, which are stored in variants. A kernel changes a map in place if no other
//! variant shares it.

use crate::objects::rows;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result, invalid};
use graph::{DType, Shape, Tensor, TensorMap};
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("EmptyTensorMap", &[], |_| {
        Kernel::sync(|ctx| {
            ctx.set_output(0, Tensor::variant(TensorMap::default()));
            Ok(())
        })
    }),
    KernelDef::of("TensorMapSize", &[], |_| {
        Kernel::sync(|ctx| {
            let size = i32::try_from(map(ctx)?.len()).unwrap_or(i32::MAX);
            ctx.set_scalar(0, size);
            Ok(())
        })
    }),
    KernelDef::of("TensorMapLookup", &[], lookup),
    KernelDef::of("TensorMapInsert", &[], |_| {
        Kernel::sync(|ctx| {
            let (key, value) = (ctx.input(1)?.clone(), ctx.input(2)?.clone());
            edit(ctx, |map| Ok(map.insert(key, value)?))
        })
    }),
    KernelDef::of("TensorMapErase", &[], |_| {
        Kernel::sync(|ctx| {
            let key = ctx.input(1)?.clone();
            edit(ctx, |map| match map.remove(&key)? {
                Some(_) => Ok(()),
                None => Err(missing("erase non-existent item", &key)),
            })
        })
    }),
    KernelDef::of("TensorMapHasKey", &[], |_| {
        Kernel::sync(|ctx| {
            let has_key = map(ctx)?.get(ctx.input(1)?)?.is_some();
            ctx.set_output(0, Tensor::bools(&[has_key], Shape::scalar())?);
            Ok(())
        })
    }),
    KernelDef::of("TensorMapStackKeys", &[], stack_keys),
];

/// Returns the map in input 0, which must be a scalar variant.
fn map(ctx: &KernelContext<'_>) -> Result<Arc<TensorMap>> {
    let input = ctx.input(0)?;
    match input.as_variants()? {
        [variant] if input.shape().rank() == 0 => Ok(variant.expect("a map of tensors")?),
        _ => Err(not_scalar(input)),
    }
}

fn not_scalar(input: &Tensor) -> Error {
    Error::invalid(format!("Input map must be a scalar. Saw: {}", input.shape()))
}

fn missing(action: &str, key: &Tensor) -> Error {
    Error::invalid(format!("Trying to {action}. Could not find key \"{}\".", key.summarize(3)))
}

/// Applies a change to the map in input 0, in place if the map is not shared, and sets output 0 to the changed map.
fn edit(ctx: &mut KernelContext<'_>, change: impl FnOnce(&mut TensorMap) -> Result<()>) -> Result<()> {
    let mut handle = ctx.take_input(0)?;
    if handle.shape().rank() != 0 {
        return Err(not_scalar(&handle));
    }
    if let [variant, ..] = handle.variants_mut()? {
        change(variant.make_mut("a map of tensors")?)?;
        ctx.set_output(0, handle);
        return Ok(());
    }
    Err(not_scalar(&handle))
}

fn lookup(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.attr::<DType>("value_dtype")?;
    Kernel::sync(move |ctx| {
        let (map, key) = (map(ctx)?, ctx.input(1)?);
        let Some(value) = map.get(key)? else { return Err(missing("lookup non-existent key", key)) };
        if value.dtype() != dtype {
            invalid!("The value of the key is of type {}, but {dtype} is expected", value.dtype());
        }
        ctx.set_output(0, value.clone());
        Ok(())
    })
}

/// Outputs all keys, which must have one shape, as one tensor with a leading axis.
fn stack_keys(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.attr::<DType>("key_dtype")?;
    Kernel::sync(move |ctx| {
        let map = map(ctx)?;
        let mut shape = None;
        let mut keys = Vec::with_capacity(map.len());
        for (key, _) in map.entries() {
            if key.dtype() != dtype {
                invalid!("Key does not match requested dtype.");
            }
            if shape.get_or_insert_with(|| key.shape().clone()) != key.shape() {
                invalid!("Keys must all have the same shape.");
            }
            keys.push(key.reshaped(Shape::new(&[&[1], key.shape().dims()].concat())?)?);
        }
        if keys.is_empty() {
            invalid!("TensorMapStackKeys cannot be called on empty map.");
        }
        ctx.set_output(0, rows::concatenate(&keys.iter().collect::<Vec<_>>())?);
        Ok(())
    })
}
