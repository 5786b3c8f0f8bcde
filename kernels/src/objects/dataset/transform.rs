//! Transformations that select, repeat and combine elements without changing them.

use super::state::{ExchangedState, InputState, StateExchange, StateValue};
use super::{Cardinality, Dataset, DatasetIterator, DatasetKind, Element, ElementSpec, INFINITE, UNKNOWN};
use super::{IteratorContext, Pull, relaxed};
use bytes::Bytes;
use device::{Error, Result};
use graph::{Code, DType, PartialShape, Tensor};
use rustc_hash::FxHashSet;
use std::sync::Arc;

type Boxed = Box<dyn DatasetIterator>;

/// An iterator whose `next` is a closure over a state.
struct FnIterator<S, F> {
    kind: &'static str,
    state: S,
    next: F,
}

impl<S, F> DatasetIterator for FnIterator<S, F>
where
    S: ExchangedState + Send,
    F: FnMut(&mut S, &Pull) -> Result<Option<Element>> + Send,
{
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        (self.next)(&mut self.state, pull)
    }
}

impl<S: ExchangedState, F> ExchangedState for FnIterator<S, F> {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.kind(self.kind)?;
        self.state.exchange(exchange)
    }
}

/// Returns an iterator that calls `next` for each element. `state` is all that changes from element to element, and
/// `kind` is the name of the dataset's kind.
pub(super) fn from_state<S: ExchangedState + Send + 'static>(
    kind: &'static str,
    state: S,
    next: impl FnMut(&mut S, &Pull) -> Result<Option<Element>> + Send + 'static,
) -> Result<Boxed> {
    Ok(Box::new(FnIterator { kind, state, next }))
}

/// The state of an iterator that cannot be saved; the string names the kind of its dataset.
struct UnsavedState(&'static str);

impl ExchangedState for UnsavedState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        Err(exchange.unsupported(self.0))
    }
}

/// Returns an iterator that calls `next` for each element and cannot be saved; `kind` is the name of the dataset's
/// kind.
pub(super) fn from_fn(
    kind: &'static str,
    mut next: impl FnMut(&Pull) -> Result<Option<Element>> + Send + 'static,
) -> Result<Boxed> {
    from_state(kind, UnsavedState(kind), move |_, pull| next(pull))
}

/// A kind of dataset, defined by its name and by a closure that makes its iterators.
struct FnDataset<F> {
    name: &'static str,
    make: F,
}

impl<F: Fn(&IteratorContext) -> Result<Boxed> + Send + Sync> DatasetKind for FnDataset<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn iterate(&self, ctx: &IteratorContext) -> Result<Boxed> {
        (self.make)(ctx)
    }
}

impl<F> std::fmt::Debug for FnDataset<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Returns a dataset whose iterators `make` makes.
pub(super) fn dataset(
    name: &'static str,
    spec: ElementSpec,
    cardinality: Cardinality,
    inputs: &[&Arc<Dataset>],
    make: impl Fn(&IteratorContext) -> Result<Boxed> + Send + Sync + 'static,
) -> Result<Arc<Dataset>> {
    Dataset::new(spec, cardinality, inputs, FnDataset { name, make })
}

/// Returns the input with the options of a serialized `Options` message in addition to its own.
///
/// # Errors
/// `InvalidArgument` if the message is malformed.
pub(crate) fn options(input: Arc<Dataset>, options: &Bytes) -> Result<Arc<Dataset>> {
    let (spec, cardinality) = (input.spec.clone(), input.cardinality);
    let options = super::message::merged_options([&input.options, options])?;
    let inner = input.clone();
    let kind = FnDataset { name: "Options", make: move |ctx: &IteratorContext| inner.iterator(ctx) };
    let made = Dataset::with_options(spec, cardinality, options, &[&input], Box::new(kind))?;
    let made = made.with_batch_size(input.batch_size);
    Ok(made.with_random_access(move |i, access| input.element_at(i as i64, access)))
}

/// Returns a dataset whose iterators `make` makes, and whose elements are batches of one size if all inputs are known
/// to have batches of that size.
pub(super) fn batch_preserving(
    name: &'static str,
    spec: ElementSpec,
    cardinality: Cardinality,
    inputs: &[&Arc<Dataset>],
    make: impl Fn(&IteratorContext) -> Result<Boxed> + Send + Sync + 'static,
) -> Result<Arc<Dataset>> {
    Ok(dataset(name, spec, cardinality, inputs, make)?.with_batch_size(common_batch_size(inputs)))
}

/// Returns the batch size of all inputs; `None` if it differs or is not known.
pub(super) fn common_batch_size(inputs: &[&Arc<Dataset>]) -> Option<i64> {
    let first = inputs.first()?.batch_size?;
    inputs.iter().all(|input| input.batch_size == Some(first)).then_some(first)
}

/// A function that makes an iterator over an input.
type MakeFn = Box<dyn Fn() -> Result<Boxed> + Send>;

/// The state of an iterator over two inputs, one after the other.
struct ConcatenateState {
    current: Boxed,
    /// True while `current` is over the first input.
    is_first: bool,
    /// Makes the iterator over the second input.
    second: MakeFn,
}

impl ExchangedState for ConcatenateState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.value(&mut self.is_first)?;
        if exchange.is_restoring() && !self.is_first {
            self.current = (self.second)()?;
        }
        self.current.exchange(exchange)
    }
}

/// Returns the dataset of the elements of `first`, followed by the elements of `second`.
pub(crate) fn concatenate(first: Arc<Dataset>, second: Arc<Dataset>) -> Result<Arc<Dataset>> {
    if first.spec.dtypes != second.spec.dtypes {
        device::invalid!(
            "input dataset and dataset to concatenate have different output_types {:?} and {:?}",
            first.spec.dtypes,
            second.spec.dtypes
        );
    }
    let shapes = first.spec.shapes.iter().zip(&second.spec.shapes).map(|(a, b)| relaxed(a, b));
    let spec = ElementSpec { dtypes: first.spec.dtypes.clone(), shapes: shapes.collect() };
    let cardinality = match (first.cardinality, second.cardinality) {
        (INFINITE, _) | (_, INFINITE) => INFINITE,
        (UNKNOWN, _) | (_, UNKNOWN) => UNKNOWN,
        (a, b) => a.checked_add(b).unwrap_or(INFINITE),
    };
    let inputs = [first.clone(), second.clone()];
    let (before, after) = (first.clone(), second.clone());
    batch_preserving("Concatenate", spec, cardinality, &[&first, &second], move |ctx| {
        let (second_at, second) = (ctx.input(1), inputs[1].clone());
        let state = ConcatenateState {
            current: inputs[0].iterator(&ctx.input(0))?,
            is_first: true,
            second: Box::new(move || second.iterator(&second_at)),
        };
        from_state("Concatenate", state, |state, pull| {
            if let Some(element) = state.current.next(pull)? {
                return Ok(Some(element));
            }
            if !std::mem::take(&mut state.is_first) {
                return Ok(None);
            }
            state.current = (state.second)()?;
            state.current.next(pull)
        })
    })
    .map(|made| {
        made.with_random_access(move |i, access| match i as i64 {
            i if i < before.cardinality => before.element_at(i, access),
            i => after.element_at(i - before.cardinality, access),
        })
    })
}

/// The iterators over the inputs of a zipped dataset; none after the end.
struct ZipState(Vec<Boxed>);

impl ExchangedState for ZipState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.inputs(&mut self.0)
    }
}

/// Returns the dataset of tuples: each element has the components of one element of each input. The dataset ends with
/// the shortest input.
pub(crate) fn zip(inputs: Vec<Arc<Dataset>>) -> Result<Arc<Dataset>> {
    let spec = ElementSpec {
        dtypes: inputs.iter().flat_map(|i| i.spec.dtypes.clone()).collect(),
        shapes: inputs.iter().flat_map(|i| i.spec.shapes.clone()).collect(),
    };
    let mut cardinality = INFINITE;
    for input in &inputs {
        cardinality = match (cardinality, input.cardinality) {
            (UNKNOWN, _) | (_, UNKNOWN) => UNKNOWN,
            (INFINITE, n) | (n, INFINITE) => n,
            (a, b) => a.min(b),
        };
    }
    let all = inputs.clone();
    let parts = inputs.clone();
    batch_preserving("Zip", spec, cardinality, &inputs.iter().collect::<Vec<_>>(), move |ctx| {
        let iterators = all.iter().enumerate().map(|(i, d)| d.iterator(&ctx.input(i)));
        let state = ZipState(iterators.collect::<Result<_>>()?);
        from_state("Zip", state, |ZipState(iterators), pull| {
            let mut element = Element::new();
            let mut failed = None;
            for iterator in iterators.iter_mut() {
                // After an error in one input the remaining iterators advance too, so that all iterators stay at the
                // same index.
                match iterator.next(pull) {
                    Ok(Some(part)) => element.extend(part),
                    Ok(None) => {
                        iterators.clear();
                        return Ok(None);
                    }
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            match failed {
                Some(error) => Err(error),
                None if element.is_empty() => Ok(None),
                None => Ok(Some(element)),
            }
        })
    })
    .map(|made| {
        made.with_random_access(move |i, access| {
            let parts = parts.iter().map(|part| part.element_at(i as i64, access));
            Ok(parts.collect::<Result<Vec<Element>>>()?.into_iter().flatten().collect())
        })
    })
}

/// Returns the cardinality of `count` repetitions; a negative `count` repeats without end.
pub(super) fn repeated(input: Cardinality, count: i64) -> Cardinality {
    match (input, count) {
        (_, 0) | (0, _) => 0,
        (INFINITE, _) => INFINITE,
        (UNKNOWN, _) if count < 0 => INFINITE,
        (UNKNOWN, _) => UNKNOWN,
        (_, ..0) => INFINITE,
        (n, count) => n.checked_mul(count).unwrap_or(INFINITE),
    }
}

/// The state of an iterator that repeats its input.
struct RepeatState {
    /// Number of repetitions that have not ended; `None` repeats without end.
    left: Option<u64>,
    /// The iterator of the current repetition.
    current: Option<Boxed>,
    /// True until the current repetition has given an element.
    is_fresh: bool,
    /// Makes the iterator of a repetition.
    make: MakeFn,
}

impl ExchangedState for RepeatState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.value(&mut self.left)?;
        exchange.value(&mut self.is_fresh)?;
        exchange.remade(&mut self.current, &self.make)
    }
}

/// Returns the dataset of `count` repetitions of the input; a negative `count` repeats without end.
pub(crate) fn repeat(input: Arc<Dataset>, count: i64) -> Result<Arc<Dataset>> {
    let cardinality = repeated(input.cardinality, count);
    let inner = input.clone();
    let whole = input.clone();
    batch_preserving("Repeat", input.spec.clone(), cardinality, &[&input], move |ctx| {
        let (ctx, input) = (ctx.clone(), inner.clone());
        let left = u64::try_from(count).ok();
        // The iterator of the first repetition is made here if the count is finite, and otherwise at the first pull.
        let current = match left {
            Some(1..) => Some(input.iterator(&ctx)?),
            _ => None,
        };
        let make: MakeFn = Box::new(move || input.iterator(&ctx));
        let state = RepeatState { left, current, is_fresh: true, make };
        from_state("Repeat", state, |state, pull| {
            loop {
                let iterator = match &mut state.current {
                    Some(iterator) => iterator,
                    None if state.left == Some(0) => return Ok(None),
                    None => {
                        state.is_fresh = true;
                        state.current.insert((state.make)()?)
                    }
                };
                pull.check()?;
                if let Some(element) = iterator.next(pull)? {
                    state.is_fresh = false;
                    return Ok(Some(element));
                }
                state.current = None;
                state.left = state.left.map(|left| left - 1);
                if state.is_fresh && state.left.is_none() {
                    // Endless repetition of an empty input would never return, so the dataset ends.
                    state.left = Some(0);
                }
            }
        })
    })
    .map(|made| {
        made.with_random_access(move |i, access| {
            whole.element_at(i as i64 % whole.cardinality.max(1), access)
        })
    })
    .map(|made| match count {
        1.. => made,
        _ => {
            let reason = "does not support random access of tf.data datasets.";
            made.with_order_error(format!("FAILED_PRECONDITION: `repeat({count})` {reason}"))
        }
    })
}

/// Returns the dataset of the first `count` elements of the input; all elements if `count` is negative.
pub(crate) fn take(input: Arc<Dataset>, count: i64) -> Result<Arc<Dataset>> {
    let cardinality = match input.cardinality {
        n if count < 0 => n,
        _ if count == 0 => 0,
        INFINITE => count,
        UNKNOWN => UNKNOWN,
        n => n.min(count),
    };
    let inner = input.clone();
    let whole = input.clone();
    batch_preserving("Take", input.spec.clone(), cardinality, &[&input], move |ctx| {
        let input = if count == 0 { None } else { Some(inner.iterator(ctx)?) };
        let state = InputState { input, functions: Vec::new(), value: u64::try_from(count).ok() };
        from_state("Take", state, |state, pull| {
            let Some(iterator) = &mut state.input else { return Ok(None) };
            let element = iterator.next(pull)?;
            state.value = state.value.map(|left| left - 1);
            if element.is_none() || state.value == Some(0) {
                state.input = None;
            }
            Ok(element)
        })
    })
    .map(|made| made.with_random_access(move |i, access| whole.element_at(i as i64, access)))
}

/// Returns the dataset of the input's elements after the first `count`; no elements if `count` is negative.
pub(crate) fn skip(input: Arc<Dataset>, count: i64) -> Result<Arc<Dataset>> {
    let cardinality = match input.cardinality {
        _ if count < 0 => 0,
        n @ (INFINITE | UNKNOWN) => n,
        n => (n - count).max(0),
    };
    let inner = input.clone();
    let whole = input.clone();
    batch_preserving("Skip", input.spec.clone(), cardinality, &[&input], move |ctx| {
        let input = if count < 0 { None } else { Some(inner.iterator(ctx)?) };
        let state = InputState { input, functions: Vec::new(), value: count };
        from_state("Skip", state, |state, pull| {
            let Some(iterator) = &mut state.input else { return Ok(None) };
            while state.value > 0 {
                pull.check()?;
                if iterator.next(pull)?.is_none() {
                    state.input = None;
                    return Ok(None);
                }
                state.value -= 1;
            }
            iterator.next(pull)
        })
    })
    .map(|made| made.with_random_access(move |i, access| whole.element_at(i as i64 + count, access)))
}

/// Returns the dataset of the elements for worker `index` of `workers`; `policy` is a number of TensorFlow's
/// `AutoShardPolicy`. The automatic policy shards by elements rather than by files: each worker reads the whole input,
/// and each element goes to one worker.
pub(crate) fn auto_shard(input: Arc<Dataset>, workers: i64, index: i64, policy: i64) -> Result<Arc<Dataset>> {
    const OFF: i64 = -1;
    const BY_FILE: i64 = 1;
    const HINTED: i64 = 3;
    if workers < 1 {
        device::invalid!("num_workers must be greater than zero.");
    }
    if !(0..workers).contains(&index) {
        device::invalid!("index must be between 0 and {}", workers - 1);
    }
    match policy {
        _ if workers == 1 => Ok(input),
        OFF | HINTED => Ok(input),
        BY_FILE => Err(Error::unimplemented("AutoShardDataset by files; AutoShardPolicy.DATA is there")),
        _ => shard(input, workers, index, false),
    }
}

/// Returns the dataset of every `shards`-th element of the input, starting at `index`.
pub(crate) fn shard(
    input: Arc<Dataset>,
    shards: i64,
    index: i64,
    require_non_empty: bool,
) -> Result<Arc<Dataset>> {
    if shards <= 0 {
        device::invalid!("Number of shards must be greater than zero (currently num_shards = {shards}).");
    }
    if index < 0 || index >= shards {
        device::invalid!("Index must be between 0 and {} (currently index = {index}).", shards - 1);
    }
    let cardinality = match input.cardinality {
        n @ (INFINITE | UNKNOWN) => n,
        n => n / shards + i64::from(index < n % shards),
    };
    let inner = input.clone();
    let whole = input.clone();
    batch_preserving("Shard", input.spec.clone(), cardinality, &[&input], move |ctx| {
        // The value of the state is the number of elements read, and a flag that is set until the first block of
        // elements is complete.
        let state = InputState::new(inner.iterator(ctx)?, (0i64, require_non_empty));
        from_state("Shard", state, move |state, pull| {
            loop {
                pull.check()?;
                let next = state.next_input(pull)?;
                let (at, must_be_full) = &mut state.value;
                let Some(element) = next else {
                    if *must_be_full {
                        return Err(too_few_error(*at, shards));
                    }
                    return Ok(None);
                };
                *at += 1;
                if (*at - 1) % shards != index {
                    continue;
                }
                while state.value.1 && state.value.0 < shards {
                    pull.check()?;
                    if state.next_input(pull)?.is_none() {
                        return Err(too_few_error(state.value.0, shards));
                    }
                    state.value.0 += 1;
                }
                state.value.1 = false;
                return Ok(Some(element));
            }
        })
    })
    .map(|made| made.with_random_access(move |i, access| whole.element_at(i as i64 * shards + index, access)))
}

fn too_few_error(elements: i64, shards: i64) -> Error {
    Error::invalid(format!(
        "There aren't enough elements in this dataset for each shard to have at least one element (# elems = \
         {elements}, # shards = {shards})."
    ))
}

/// Returns the dataset of the input's distinct elements, each at its first occurrence; elements must have a single
/// component.
pub(crate) fn unique(input: Arc<Dataset>) -> Result<Arc<Dataset>> {
    match &input.spec.dtypes[..] {
        [DType::Int32 | DType::Int64 | DType::String] => {}
        [other] => device::invalid!(
            "UniqueDataset only supports inputs with a single `tf.int32`, `tf.int64`, or \
                                    `tf.string` component, got {other}"
        ),
        many => {
            device::invalid!("UniqueDataset only supports inputs with a single component, got {}", many.len())
        }
    }
    let inner = input.clone();
    dataset("Unique", input.spec.clone(), UNKNOWN, &[&input], move |ctx| {
        let state = InputState::new(inner.iterator(ctx)?, SeenElements::default());
        from_state("Unique", state, |state, pull| {
            loop {
                pull.check()?;
                let Some(element) = state.next_input(pull)? else { return Ok(None) };
                if state.value.0.insert(element_key(&element)?) {
                    return Ok(Some(element));
                }
            }
        })
    })
}

/// The [keys](element_key) of the elements that have been returned.
#[derive(Default)]
struct SeenElements(FxHashSet<Vec<u8>>);

impl StateValue for SeenElements {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        let mut keys: Vec<Bytes> = self.0.iter().map(|key| Bytes::copy_from_slice(key)).collect();
        keys.sort();
        keys.put(out)
    }

    fn take(rest: &mut Bytes) -> Result<SeenElements> {
        Ok(SeenElements(Vec::<Bytes>::take(rest)?.into_iter().map(Vec::from).collect()))
    }
}

/// Returns the bytes that identify an element: they are equal if and only if the elements are equal.
fn element_key(element: &[Tensor]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for tensor in element {
        bytes.extend(tensor.shape().iter().flat_map(|d| (*d as u64).to_le_bytes()));
        match tensor.as_strings() {
            Ok(strings) => {
                for string in strings {
                    bytes.extend((string.len() as u64).to_le_bytes());
                    bytes.extend_from_slice(string);
                }
            }
            Err(_) => bytes.extend_from_slice(tensor.bytes()?),
        }
    }
    Ok(bytes)
}

/// Returns the dataset of the input's elements, without the elements whose pulls fail.
pub(crate) fn ignore_errors(input: Arc<Dataset>) -> Result<Arc<Dataset>> {
    let cardinality = if input.cardinality == INFINITE { INFINITE } else { UNKNOWN };
    let inner = input.clone();
    dataset("IgnoreErrors", input.spec.clone(), cardinality, &[&input], move |ctx| {
        from_state("IgnoreErrors", InputState::new(inner.iterator(ctx)?, ()), |state, pull| {
            loop {
                // A cancellation ends the pull, unlike the error of an element, which is skipped.
                pull.check()?;
                if let Ok(element) = state.next_input(pull) {
                    return Ok(element);
                }
            }
        })
    })
}

/// Returns the dataset of the input's elements, with an error if the input has more or fewer than `expected` elements.
pub(crate) fn assert_cardinality(input: Arc<Dataset>, expected: i64) -> Result<Arc<Dataset>> {
    let (inner, whole) = (input.clone(), input.clone());
    batch_preserving("AssertCardinality", input.spec.clone(), expected, &[&input], move |ctx| {
        from_state("AssertCardinality", InputState::new(inner.iterator(ctx)?, 0i64), move |state, pull| {
            let element = state.next_input(pull)?;
            state.value += i64::from(element.is_some());
            let seen = state.value;
            let wrong = |how: &str| {
                let message = format!(
                    "Input dataset was expected to contain {} but contained {how} {}.",
                    elements_text(expected),
                    elements_text(seen)
                );
                Err(Error::new(Code::FailedPrecondition, message))
            };
            match element {
                None if expected == INFINITE || (expected >= 0 && seen < expected) => wrong("only"),
                Some(_) if expected >= 0 && seen > expected => wrong("at least"),
                element => Ok(element),
            }
        })
    })
    .map(|made| {
        made.with_random_access(move |i, access| {
            whole.element_at(i as i64, access).map_err(|error| match error.code() {
                Code::OutOfRange => {
                    let count = elements_text(expected);
                    let message = format!("Input dataset was expected to contain {count}.");
                    Error::new(Code::FailedPrecondition, message)
                }
                _ => error,
            })
        })
    })
}

fn elements_text(n: Cardinality) -> String {
    match n {
        INFINITE => "an infinite number of elements".to_owned(),
        UNKNOWN => "an unknown number of elements".to_owned(),
        1 => "1 element".to_owned(),
        n => format!("{n} elements"),
    }
}

/// The state of an iterator that takes elements from chosen inputs.
struct DirectedState {
    selector: Boxed,
    /// The inputs, each `None` once it has ended; empty if one has ended and the dataset ends with it.
    inputs: Vec<Option<Boxed>>,
}

impl ExchangedState for DirectedState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        self.selector.exchange(exchange)?;
        let mut has_inputs = !self.inputs.is_empty();
        exchange.value(&mut has_inputs)?;
        if !has_inputs {
            self.inputs.clear();
        }
        self.inputs.iter_mut().try_for_each(|input| exchange.input(input))
    }
}

/// Returns the dataset of the elements of `inputs`: each element is taken from the input whose index `selector`
/// produces next.
pub(crate) fn directed_interleave(
    selector: Arc<Dataset>,
    inputs: Vec<Arc<Dataset>>,
    stop_on_empty: bool,
) -> Result<Arc<Dataset>> {
    if selector.spec.dtypes != [DType::Int64]
        || !selector.spec.shapes[0].is_compatible(&PartialShape::scalar())
    {
        device::invalid!("The selector input must be a dataset of scalar int64 elements.");
    }
    let Some(first) = inputs.first() else { device::invalid!("there is no dataset to choose from") };
    let mut spec = first.spec.clone();
    for input in &inputs {
        if input.spec.dtypes != spec.dtypes {
            device::invalid!("All inputs must have the same output_types.");
        }
        for (shape, other) in spec.shapes.iter_mut().zip(&input.spec.shapes) {
            *shape = relaxed(shape, other);
        }
    }
    let of_inputs = inputs.iter().map(|i| i.cardinality);
    let cardinality = match of_inputs.clone().fold(0i64, |sum, n| match (sum, n) {
        (INFINITE, _) | (_, INFINITE) => INFINITE,
        (UNKNOWN, _) | (_, UNKNOWN) => UNKNOWN,
        (a, b) => a.checked_add(b).unwrap_or(INFINITE),
    }) {
        // With an endless selector, all inputs are read to their ends, so the cardinality is the sum. It is unknown if
        // the dataset stops at the end of the selector or at the first end of an input.
        n if !stop_on_empty && selector.cardinality == INFINITE => n,
        _ => UNKNOWN,
    };
    let (choose, from) = (selector.clone(), inputs.clone());
    let all: Vec<&Arc<Dataset>> = std::iter::once(&selector).chain(&inputs).collect();
    dataset("DirectedInterleave", spec, cardinality, &all, move |ctx| {
        let chosen = from.iter().enumerate().map(|(i, d)| d.iterator(&ctx.input(i + 1)).map(Some));
        let state = DirectedState {
            selector: choose.iterator(&ctx.input(0))?,
            inputs: chosen.collect::<Result<Vec<_>>>()?,
        };
        from_state("DirectedInterleave", state, move |DirectedState { selector, inputs }, pull| {
            loop {
                pull.check()?;
                if inputs.iter().all(Option::is_none) {
                    return Ok(None);
                }
                let Some(selected) = selector.next(pull)? else { return Ok(None) };
                let [selected] = &selected[..] else { device::invalid!("a selection is one number") };
                let selected = selected.item::<i64>()?;
                let count = inputs.len();
                let Some(input) = usize::try_from(selected).ok().and_then(|i| inputs.get_mut(i)) else {
                    device::invalid!("Selector index out of range: {selected} >= {count}");
                };
                let Some(iterator) = input else { continue };
                if let Some(element) = iterator.next(pull)? {
                    return Ok(Some(element));
                }
                *input = None;
                if stop_on_empty {
                    inputs.clear();
                }
            }
        })
    })
}
