//! Transfers of values between host memory and device memory, including the tensors inside variants. Lists and
//! optionals made by the CPU hold host tensors; those made by a device with its own memory hold tensors in either
//! memory.

use crate::device::{Device, Transfer};
use crate::error::{Error, Result};
use crate::value::{AnyTensor, Item, ListElement, Value};
use graph::{DType, Optional, Tensor, TensorList, Variant};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;

type Values = SmallVec<[Value; 4]>;

/// Copies a value of the device into host memory.
///
/// # Errors
/// Errors of the transfer; `Internal` if the value is not a tensor.
pub fn to_host(device: &Arc<Device>, value: Value, done: Transfer<Tensor>) {
    match value {
        Value::Device(tensor) => device.processor().download(tensor, done),
        Value::Host(tensor) if holds_device_elements(&tensor) => {
            transfer_contents(tensor, |value, done| to_host(device, value, done), done);
        }
        Value::Host(tensor) => done(Ok(tensor)),
        other => done(Err(Error::internal(format!("{other:?} is no tensor to bring to the host")))),
    }
}

/// Copies a tensor from host memory, or from a device whose tensors `device` can [adopt](crate::Processor::adopt), into
/// the memory of `device`. A tensor in memory that `device` cannot access is only copied to host memory. 32-bit
/// integers inside variants stay on the host, where kernels expect them.
///
/// # Errors
/// Errors of the transfer; `Internal` if the value is not a tensor.
pub fn to_device(device: &Arc<Device>, value: Value, done: Transfer<Value>) {
    match value {
        Value::Host(tensor)
            if device.processor().has_own_memory()
                && (holds_elements::<Tensor>(&tensor) || holds_device_elements(&tensor)) =>
        {
            let carried = Box::new(|tensor: Result<Tensor>| done(tensor.map(Value::from)));
            transfer_contents(tensor, |value, done| to_variant(device, value, done), carried);
        }
        Value::Host(tensor) => device.processor().upload(tensor, done),
        Value::Device(tensor) => device.processor().adopt(tensor, done),
        other => done(Err(Error::internal(format!("{other:?} is no tensor to bring to {}", device.name())))),
    }
}

/// Copies those of the values that are in device memory into host memory.
///
/// # Errors
/// Those of [`to_host`].
pub fn all_to_host(device: &Arc<Device>, values: Values, done: Transfer<Values>) {
    let transfer = |value, done: Transfer<Value>| {
        to_host(device, value, Box::new(|tensor: Result<Tensor>| done(tensor.map(Value::from))));
    };
    transfer_all(values, transfer, done);
}

/// Copies values of the host, or of other devices, into the device's memory. 32-bit integers in host memory stay there,
/// where kernels usually expect them.
///
/// # Errors
/// Those of [`to_device`]; `InvalidArgument` if a value is in another device's memory and this device has no memory of
/// its own.
pub fn all_to_device(device: &Arc<Device>, values: Values, done: Transfer<Values>) {
    if !device.processor().has_own_memory() {
        let is_elsewhere = values.iter().any(|value| matches!(value, Value::Device(_)));
        return done(if is_elsewhere { Err(out_of_reach(device)) } else { Ok(values) });
    }
    let transfer = |value, done: Transfer<Value>| match value {
        Value::Host(tensor) if tensor.dtype() == DType::Int32 => done(Ok(tensor.into())),
        value => into_memory(device, value, done),
    };
    transfer_all(values, transfer, done);
}

fn out_of_reach(device: &Device) -> Error {
    Error::invalid(format!(
        "a value that {} needs contains tensors in another device's memory: run the node on that device",
        device.name()
    ))
}

/// Copies a value into the device's memory like [`to_device`], through host memory if the device cannot access the
/// source.
fn into_memory(device: &Arc<Device>, value: Value, done: Transfer<Value>) {
    match value {
        Value::Device(tensor) => {
            let own = device.clone();
            let adopted = move |arrived| match arrived {
                Ok(Value::Host(tensor)) => own.processor().upload(tensor, done),
                arrived => done(arrived),
            };
            device.processor().adopt(tensor, Box::new(adopted));
        }
        value => to_device(device, value, done),
    }
}

/// Copies a tensor that is inside a variant into the device's memory; 32-bit integers stay in host memory.
fn to_variant(device: &Arc<Device>, value: Value, done: Transfer<AnyTensor>) {
    if matches!(&value, Value::Host(tensor) if tensor.dtype() == DType::Int32) {
        return done(AnyTensor::of(value));
    }
    let placed = move |arrived: Result<Value>| done(arrived.and_then(AnyTensor::of));
    into_memory(device, value, Box::new(placed));
}

/// Returns whether the tensor contains variants that were made by a device with its own memory.
pub fn holds_device_elements(tensor: &Tensor) -> bool {
    holds_elements::<AnyTensor>(tensor)
}

fn holds_elements<H: ListElement>(tensor: &Tensor) -> bool {
    let is_of = |variant: &Variant| {
        variant.get::<TensorList<H>>().is_some() || variant.get::<Optional<H>>().is_some()
    };
    tensor.as_variants().is_ok_and(|variants| variants.iter().any(is_of))
}

/// Starts the transfers of all tensors inside the variants of `tensor`, and passes the variants with the transferred
/// tensors to `done`.
fn transfer_contents<T: ListElement>(
    tensor: Tensor,
    transfer: impl Fn(Value, Transfer<T>),
    done: Transfer<Tensor>,
) {
    let mut held = Vec::new();
    let seen = replaced(&tensor, &mut |value| {
        held.push(value.clone());
        AnyTensor::of(value)
    });
    if let Err(error) = seen {
        return done(Err(error));
    }
    let arrived = move |brought: Result<Vec<T>>| {
        let carried = brought.and_then(|brought| {
            let mut brought = brought.into_iter();
            let missing = || Error::internal("a tensor of a variant got lost");
            replaced::<T>(&tensor, &mut |_| brought.next().ok_or_else(missing))
        });
        // The original variants are dropped before `done` is called, so that `done` can write in place to the memory
        // that they have in common with the result.
        drop(tensor);
        done(carried);
    };
    transfer_all(held, transfer, Box::new(arrived));
}

/// Returns a copy of `tensor`, a tensor of variants, in which `with` has replaced each tensor inside the variants, at any
/// depth.
fn replaced<T: ListElement>(tensor: &Tensor, with: &mut dyn FnMut(Value) -> Result<T>) -> Result<Tensor> {
    VariantReplacer { with, cache: FxHashMap::default() }.tensor(tensor)
}

struct VariantReplacer<'a, T> {
    with: &'a mut dyn FnMut(Value) -> Result<T>,
    /// The replacement of each object, by the object's address: an object referenced from many places is replaced once.
    cache: FxHashMap<*const (), Variant>,
}

impl<T: ListElement> VariantReplacer<'_, T> {
    fn tensor(&mut self, tensor: &Tensor) -> Result<Tensor> {
        let variants = tensor.as_variants()?.iter().map(|variant| self.variant(variant));
        Ok(Tensor::variants(variants.collect::<Result<_>>()?, tensor.shape().clone())?)
    }

    fn variant(&mut self, variant: &Variant) -> Result<Variant> {
        let Some(object) = variant.object() else { return Ok(Variant::EMPTY) };
        let address = Arc::as_ptr(object).cast::<()>();
        if let Some(replaced) = self.cache.get(&address) {
            return Ok(replaced.clone());
        }
        let replaced = match self.contents_of::<Tensor>(variant)? {
            Some(replaced) => replaced,
            None => self.contents_of::<AnyTensor>(variant)?.unwrap_or_else(|| variant.clone()),
        };
        self.cache.insert(address, replaced.clone());
        Ok(replaced)
    }

    fn contents_of<H: ListElement>(&mut self, variant: &Variant) -> Result<Option<Variant>> {
        if let Some(list) = variant.get::<TensorList<H>>() {
            return Ok(Some(Variant::new(list.map(|item| self.item(item))?)));
        }
        match variant.get::<Optional<H>>() {
            Some(optional) => Ok(Some(Variant::new(optional.map(|item| self.item(item))?))),
            None => Ok(None),
        }
    }

    fn item(&mut self, item: &impl ListElement) -> Result<T> {
        match item.on_host() {
            Some(inner) if inner.dtype() == DType::Variant => T::of(self.tensor(inner)?.into()),
            _ => (self.with)(item.clone().into()),
        }
    }
}

/// The results of several transfers that are in progress.
struct PendingTransfers<T, C> {
    results: Vec<Option<Result<T>>>,
    remaining: usize,
    done: Option<Transfer<C>>,
}

/// Starts a transfer of each value, and calls `done` when the last has ended.
///
/// # Errors
/// The error of the first value, in order, whose transfer failed.
fn transfer_all<T: Send + 'static, C: FromIterator<T> + 'static>(
    values: impl IntoIterator<Item = Value, IntoIter: ExactSizeIterator>,
    start: impl Fn(Value, Transfer<T>),
    done: Transfer<C>,
) {
    let values = values.into_iter();
    let count = values.len();
    if count == 0 {
        return done(Ok(C::from_iter([])));
    }
    let results = (0..count).map(|_| None).collect();
    let pending = Arc::new(Mutex::new(PendingTransfers { results, remaining: count, done: Some(done) }));
    for (i, value) in values.enumerate() {
        let pending = pending.clone();
        let arrived = move |result: Result<T>| {
            let mut state = pending.lock();
            state.results[i] = Some(result);
            state.remaining -= 1;
            if state.remaining == 0
                && let Some(done) = state.done.take()
            {
                let results = std::mem::take(&mut state.results);
                drop(state);
                done(results.into_iter().flatten().collect());
            }
        };
        start(value, Box::new(arrived));
    }
}
