//! Tensors that come to a device's memory and go back to the host's, with those that variants hold: lists and optionals of the
//! CPU hold tensors of the host, those of a device with memory of its own hold tensors of either memory.

use crate::device::{Device, Transfer};
use crate::error::{Error, Result};
use crate::value::{Held, Item, Placed, Value};
use graph::{DType, Optional, Tensor, TensorList, Variant};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;

type Values = SmallVec<[Value; 4]>;

/// Brings what a device holds into host memory.
///
/// # Errors
/// The transfer's; `Internal` for what is no tensor.
pub fn to_host(device: &Arc<Device>, value: Value, done: Transfer<Tensor>) {
    match value {
        Value::Device(tensor) => device.processor().download(tensor, done),
        Value::Host(tensor) if holds_placed(&tensor) => {
            carry(tensor, |value, done| to_host(device, value, done), done);
        }
        Value::Host(tensor) => done(Ok(tensor)),
        other => done(Err(Error::internal(format!("{other:?} is no tensor to bring to the host")))),
    }
}

/// Brings a tensor of the host, or of a device that [hands over](Device::hands_over), into a device's memory; one of a
/// device that it does not reach comes as far as the host. Within variants, integers of 32 bits stay on the host, as
/// kernels have them there.
///
/// # Errors
/// The transfer's; `Internal` for what is no tensor.
pub fn to_device(device: &Arc<Device>, value: Value, done: Transfer<Value>) {
    match value {
        Value::Host(tensor)
            if device.processor().has_own_memory() && (holds::<Tensor>(&tensor) || holds_placed(&tensor)) =>
        {
            let carried = Box::new(|tensor: Result<Tensor>| done(tensor.map(Value::from)));
            carry(tensor, |value, done| to_variant(device, value, done), carried);
        }
        Value::Host(tensor) => device.processor().upload(tensor, done),
        Value::Device(tensor) => device.processor().adopt(tensor, done),
        other => done(Err(Error::internal(format!("{other:?} is no tensor to bring to {}", device.name())))),
    }
}

/// Brings all that a device holds of these into host memory.
///
/// # Errors
/// As of [`to_host`].
pub fn all_to_host(device: &Arc<Device>, values: Values, done: Transfer<Values>) {
    let bring = |value, done: Transfer<Value>| {
        to_host(device, value, Box::new(|tensor: Result<Tensor>| done(tensor.map(Value::from))));
    };
    all(values, bring, done);
}

/// Brings these into a device's memory, from the host's or from a device's that [hands over](Device::hands_over), but for
/// integers of 32 bits that are on the host, where kernels have them as a rule.
///
/// # Errors
/// As of [`to_device`]; `InvalidArgument` for what a device without memory of its own cannot reach.
pub fn all_to_device(device: &Arc<Device>, values: Values, done: Transfer<Values>) {
    if !device.processor().has_own_memory() {
        let is_elsewhere = values.iter().any(|value| matches!(value, Value::Device(_)));
        return done(if is_elsewhere { Err(out_of_reach(device)) } else { Ok(values) });
    }
    let bring = |value, done: Transfer<Value>| match value {
        Value::Host(tensor) if tensor.dtype() == DType::Int32 => done(Ok(tensor.into())),
        value => into_memory(device, value, done),
    };
    all(values, bring, done);
}

fn out_of_reach(device: &Device) -> Error {
    Error::invalid(format!(
        "what is in another device's memory, such as elements that were copied there, is asked for on {}: ask for it there",
        device.name()
    ))
}

/// As [`to_device`], also of what is in the memory of a device that it does not reach.
fn into_memory(device: &Arc<Device>, value: Value, done: Transfer<Value>) {
    match value {
        Value::Device(tensor) => {
            let own = device.clone();
            let adopted = move |came| match came {
                Ok(Value::Host(tensor)) => own.processor().upload(tensor, done),
                came => done(came),
            };
            device.processor().adopt(tensor, Box::new(adopted));
        }
        value => to_device(device, value, done),
    }
}

/// Brings what a variant holds into a device's memory.
fn to_variant(device: &Arc<Device>, value: Value, done: Transfer<Placed>) {
    if matches!(&value, Value::Host(tensor) if tensor.dtype() == DType::Int32) {
        return done(Placed::of(value));
    }
    let placed = move |came: Result<Value>| done(came.and_then(Placed::of));
    into_memory(device, value, Box::new(placed));
}

/// Whether variants of the tensor hold what a device with memory of its own made.
pub fn holds_placed(tensor: &Tensor) -> bool {
    holds::<Placed>(tensor)
}

fn holds<H: Held>(tensor: &Tensor) -> bool {
    let is_of = |variant: &Variant| {
        variant.get::<TensorList<H>>().is_some() || variant.get::<Optional<H>>().is_some()
    };
    tensor.as_variants().is_ok_and(|variants| variants.iter().any(is_of))
}

/// Brings what the variants of a tensor hold over, all at once.
fn carry<T: Held>(tensor: Tensor, bring: impl Fn(Value, Transfer<T>), done: Transfer<Tensor>) {
    let mut held = Vec::new();
    let seen = replaced(&tensor, &mut |value| {
        held.push(value.clone());
        Placed::of(value)
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
        // Who is told finds what was there no longer held here.
        drop(tensor);
        done(carried);
    };
    all(held, bring, Box::new(arrived));
}

/// The same variants with other tensors in them, at whatever depth those are.
fn replaced<T: Held>(tensor: &Tensor, with: &mut dyn FnMut(Value) -> Result<T>) -> Result<Tensor> {
    Replacing { with, known: FxHashMap::default() }.tensor(tensor)
}

struct Replacing<'a, T> {
    with: &'a mut dyn FnMut(Value) -> Result<T>,
    /// What objects have become, by where they are: one that is held in many places is so again.
    known: FxHashMap<*const (), Variant>,
}

impl<T: Held> Replacing<'_, T> {
    fn tensor(&mut self, tensor: &Tensor) -> Result<Tensor> {
        let variants = tensor.as_variants()?.iter().map(|variant| self.variant(variant));
        Ok(Tensor::variants(variants.collect::<Result<_>>()?, tensor.shape().clone())?)
    }

    fn variant(&mut self, variant: &Variant) -> Result<Variant> {
        let Some(object) = variant.object() else { return Ok(Variant::EMPTY) };
        let place = Arc::as_ptr(object).cast::<()>();
        if let Some(known) = self.known.get(&place) {
            return Ok(known.clone());
        }
        let replaced = match self.contents_of::<Tensor>(variant)? {
            Some(replaced) => replaced,
            None => self.contents_of::<Placed>(variant)?.unwrap_or_else(|| variant.clone()),
        };
        self.known.insert(place, replaced.clone());
        Ok(replaced)
    }

    fn contents_of<H: Held>(&mut self, variant: &Variant) -> Result<Option<Variant>> {
        if let Some(list) = variant.get::<TensorList<H>>() {
            return Ok(Some(Variant::new(list.map(|item| self.item(item))?)));
        }
        match variant.get::<Optional<H>>() {
            Some(optional) => Ok(Some(Variant::new(optional.map(|item| self.item(item))?))),
            None => Ok(None),
        }
    }

    fn item(&mut self, item: &impl Held) -> Result<T> {
        match item.on_host() {
            Some(inner) if inner.dtype() == DType::Variant => T::of(self.tensor(inner)?.into()),
            _ => (self.with)(item.clone().into()),
        }
    }
}

/// What has come of several transfers.
struct Arrivals<T, C> {
    came: Vec<Option<Result<T>>>,
    missing: usize,
    done: Option<Transfer<C>>,
}

/// Starts a transfer of each value, and answers when the last has ended.
///
/// # Errors
/// Of the first in order that failed.
fn all<T: Send + 'static, C: FromIterator<T> + 'static>(
    values: impl IntoIterator<Item = Value, IntoIter: ExactSizeIterator>,
    start: impl Fn(Value, Transfer<T>),
    done: Transfer<C>,
) {
    let values = values.into_iter();
    let count = values.len();
    if count == 0 {
        return done(Ok(C::from_iter([])));
    }
    let came = (0..count).map(|_| None).collect();
    let arrivals = Arc::new(Mutex::new(Arrivals { came, missing: count, done: Some(done) }));
    for (i, value) in values.enumerate() {
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
