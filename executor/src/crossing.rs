//! Tensors that come and go between a device's memory and the host's, those within variants too: lists and optionals of a
//! device with memory of its own hold tensors of either
//! memory, those of the host such of the host.

use crate::device::{Device, Transfer};
use crate::error::{Error, Result};
use crate::value::{Item, Placed, Value};
use graph::{DType, Optional, Tensor, TensorList, Variant};
use parking_lot::Mutex;
use std::sync::Arc;

/// Brings what a device holds into host memory.
///
/// # Errors
/// The transfer's; `Internal` for what is no tensor.
pub fn to_host(device: &Arc<dyn Device>, value: Value, done: Transfer<Tensor>) {
    match value {
        Value::Device(tensor) => device.download(tensor, done),
        Value::Host(tensor) if is_carried(device, &tensor) => {
            carry(tensor, |value, done| to_host(device, value, done), done);
        }
        Value::Host(tensor) => done(Ok(tensor)),
        other => done(Err(Error::internal(format!("{other:?} is no tensor to bring to the host")))),
    }
}

/// Brings a tensor of the host, or of a device that [hands over](Device::hands_over), into a device's memory. Within
/// variants, integers of 32 bits stay on the host, as kernels have them there.
///
/// # Errors
/// The transfer's; `Internal` for what is no tensor.
pub fn to_device(device: &Arc<dyn Device>, value: Value, done: Transfer<Value>) {
    match value {
        Value::Host(tensor) if is_carried(device, &tensor) => {
            let held = |value: Value, done: Transfer<Placed>| match &value {
                Value::Host(tensor) if tensor.dtype() == DType::Int32 => done(Placed::of(value)),
                _ => to_device(device, value, Box::new(|came| done(came.and_then(Placed::of)))),
            };
            carry(tensor, held, Box::new(|tensor| done(tensor.map(Value::from))));
        }
        Value::Host(tensor) => device.upload(tensor, done),
        Value::Device(tensor) => {
            let own = device.clone();
            let adopted = move |value: Result<Value>| match value {
                // What was handed over by a device out of reach comes by the host.
                Ok(Value::Host(tensor)) => own.upload(tensor, done),
                value => done(value),
            };
            device.adopt(tensor, Box::new(adopted));
        }
        other => done(Err(Error::internal(format!("{other:?} is no tensor to bring to {}", device.name())))),
    }
}

/// Whether variants of the tensor hold tensors that cross as it comes to a device or leaves it.
pub(crate) fn is_carried(device: &Arc<dyn Device>, tensor: &Tensor) -> bool {
    let holds = |variant: &Variant| {
        variant.get::<TensorList>().is_some()
            || variant.get::<TensorList<Placed>>().is_some()
            || variant.get::<Optional>().is_some()
            || variant.get::<Optional<Placed>>().is_some()
    };
    device.has_own_memory() && tensor.as_variants().is_ok_and(|variants| variants.iter().any(holds))
}

/// Brings what the variants of a tensor hold over, all at once.
fn carry<T: Item>(tensor: Tensor, bring: impl Fn(Value, Transfer<T>), done: Transfer<Tensor>) {
    let mut held = Vec::new();
    let seen = replaced(&tensor, &mut |value| {
        held.push(value.clone());
        Placed::of(value)
    });
    if let Err(error) = seen {
        return done(Err(error));
    }
    let arrived = move |brought: Result<Vec<T>>| {
        done(brought.and_then(|brought| {
            let mut brought = brought.into_iter();
            let missing = || Error::internal("a tensor of a variant got lost");
            replaced::<T>(&tensor, &mut |_| brought.next().ok_or_else(missing))
        }));
    };
    all(held, bring, Box::new(arrived));
}

/// The same variants with other tensors in them, whatever depth those are at.
fn replaced<T: Item>(tensor: &Tensor, with: &mut dyn FnMut(Value) -> Result<T>) -> Result<Tensor> {
    let mut one = |value: Value| match value {
        Value::Host(inner) if inner.dtype() == DType::Variant => T::of(replaced(&inner, with)?.into()),
        value => with(value),
    };
    let mut each = |variant: &Variant| -> Result<Variant> {
        if let Some(list) = variant.get::<TensorList>() {
            return Ok(Variant::new(list.map(|tensor| one(tensor.clone().into()))?));
        }
        if let Some(list) = variant.get::<TensorList<Placed>>() {
            return Ok(Variant::new(list.map(|tensor| one(tensor.clone().into()))?));
        }
        if let Some(optional) = variant.get::<Optional>() {
            return Ok(Variant::new(optional.map(|tensor| one(tensor.clone().into()))?));
        }
        if let Some(optional) = variant.get::<Optional<Placed>>() {
            return Ok(Variant::new(optional.map(|tensor| one(tensor.clone().into()))?));
        }
        Ok(variant.clone())
    };
    let variants = tensor.as_variants()?.iter().map(&mut each).collect::<Result<_>>()?;
    Ok(Tensor::variants(variants, tensor.shape().clone())?)
}

/// What has come of several transfers.
struct Arrivals<T> {
    came: Vec<Option<Result<T>>>,
    missing: usize,
    done: Option<Transfer<Vec<T>>>,
}

/// Starts a transfer of each value, and answers when the last has ended.
///
/// # Errors
/// Of the first in order that failed.
fn all<T: Send + 'static>(values: Vec<Value>, start: impl Fn(Value, Transfer<T>), done: Transfer<Vec<T>>) {
    let count = values.len();
    if count == 0 {
        return done(Ok(vec![]));
    }
    let came = (0..count).map(|_| None).collect();
    let arrivals = Arc::new(Mutex::new(Arrivals { came, missing: count, done: Some(done) }));
    for (i, value) in values.into_iter().enumerate() {
        let arrivals = arrivals.clone();
        let arrived = move |result: Result<T>| {
            let mut state = arrivals.lock();
            state.came[i] = Some(result);
            state.missing -= 1;
            if state.missing == 0
                && let Some(done) = state.done.take()
            {
                let came = std::mem::take(&mut state.came);
                drop(state);
                done(came.into_iter().flatten().collect());
            }
        };
        start(value, Box::new(arrived));
    }
}
