//! Transformations that select, repeat and combine elements without changing them.

use super::{Cardinality, Dataset, DatasetIterator, DatasetKind, Element, ElementSpec, INFINITE, UNKNOWN};
use super::{IteratorContext, Pull, relaxed};
use device::{Error, Result};
use graph::{Code, DType, PartialShape, Tensor};
use rustc_hash::FxHashSet;
use std::sync::Arc;

type Boxed = Box<dyn DatasetIterator>;

/// An iterator whose `next` is a closure.
struct FnIterator<F>(F);

impl<F: FnMut(&Pull) -> Result<Option<Element>> + Send> DatasetIterator for FnIterator<F> {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        (self.0)(pull)
    }
}

/// Returns an iterator that calls `next` for each element.
pub(super) fn from_fn(next: impl FnMut(&Pull) -> Result<Option<Element>> + Send + 'static) -> Result<Boxed> {
    Ok(Box::new(FnIterator(next)))
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

/// Returns the input with its `deterministic` option replaced, unless `deterministic` is `None`.
pub(crate) fn options(input: Arc<Dataset>, deterministic: Option<bool>) -> Result<Arc<Dataset>> {
    let (spec, cardinality) = (input.spec.clone(), input.cardinality);
    let deterministic = deterministic.or(input.deterministic);
    let inner = input.clone();
    let kind = FnDataset { name: "Options", make: move |ctx: &IteratorContext| inner.iterator(ctx) };
    Dataset::with_options(spec, cardinality, deterministic, &[&input], Box::new(kind))
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
    dataset("Concatenate", spec, cardinality, &[&first, &second], move |ctx| {
        let (second_at, second) = (ctx.input(1), inputs[1].clone());
        let mut current = inputs[0].iterator(&ctx.input(0))?;
        let mut is_first = true;
        from_fn(move |pull| {
            if let Some(element) = current.next(pull)? {
                return Ok(Some(element));
            }
            if !std::mem::take(&mut is_first) {
                return Ok(None);
            }
            current = second.iterator(&second_at)?;
            current.next(pull)
        })
    })
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
    dataset("Zip", spec, cardinality, &inputs.iter().collect::<Vec<_>>(), move |ctx| {
        let mut iterators =
            all.iter().enumerate().map(|(i, d)| d.iterator(&ctx.input(i))).collect::<Result<Vec<_>>>()?;
        from_fn(move |pull| {
            let mut element = Element::new();
            let mut failed = None;
            for iterator in &mut iterators {
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

/// Returns the dataset of `count` repetitions of the input; a negative `count` repeats without end.
pub(crate) fn repeat(input: Arc<Dataset>, count: i64) -> Result<Arc<Dataset>> {
    let cardinality = repeated(input.cardinality, count);
    let inner = input.clone();
    dataset("Repeat", input.spec.clone(), cardinality, &[&input], move |ctx| {
        let (ctx, input) = (ctx.clone(), inner.clone());
        let mut left = u64::try_from(count).ok();
        // The iterator of the first repetition is made here if the count is finite, and otherwise at the first pull.
        let mut current: Option<Boxed> = match left {
            Some(1..) => Some(input.iterator(&ctx)?),
            _ => None,
        };
        let mut is_fresh = true;
        from_fn(move |pull| {
            loop {
                let iterator = match &mut current {
                    Some(iterator) => iterator,
                    None if left == Some(0) => return Ok(None),
                    None => {
                        is_fresh = true;
                        current.insert(input.iterator(&ctx)?)
                    }
                };
                pull.check()?;
                if let Some(element) = iterator.next(pull)? {
                    is_fresh = false;
                    return Ok(Some(element));
                }
                current = None;
                left = left.map(|left| left - 1);
                if is_fresh && left.is_none() {
                    // Endless repetition of an empty input would never return, so the dataset ends.
                    left = Some(0);
                }
            }
        })
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
    dataset("Take", input.spec.clone(), cardinality, &[&input], move |ctx| {
        let mut input = if count == 0 { None } else { Some(inner.iterator(ctx)?) };
        let mut left = u64::try_from(count).ok();
        from_fn(move |pull| {
            let Some(iterator) = &mut input else { return Ok(None) };
            let element = iterator.next(pull)?;
            left = left.map(|left| left - 1);
            if element.is_none() || left == Some(0) {
                input = None;
            }
            Ok(element)
        })
    })
}

/// Returns the dataset of the input's elements after the first `count`; no elements if `count` is negative.
pub(crate) fn skip(input: Arc<Dataset>, count: i64) -> Result<Arc<Dataset>> {
    let cardinality = match input.cardinality {
        _ if count < 0 => 0,
        n @ (INFINITE | UNKNOWN) => n,
        n => (n - count).max(0),
    };
    let inner = input.clone();
    dataset("Skip", input.spec.clone(), cardinality, &[&input], move |ctx| {
        let mut input = if count < 0 { None } else { Some(inner.iterator(ctx)?) };
        let mut left = count;
        from_fn(move |pull| {
            let Some(iterator) = &mut input else { return Ok(None) };
            while left > 0 {
                pull.check()?;
                if iterator.next(pull)?.is_none() {
                    input = None;
                    return Ok(None);
                }
                left -= 1;
            }
            iterator.next(pull)
        })
    })
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
    dataset("Shard", input.spec.clone(), cardinality, &[&input], move |ctx| {
        let mut input = inner.iterator(ctx)?;
        let mut at = 0i64;
        let mut must_be_full = require_non_empty;
        from_fn(move |pull| {
            loop {
                pull.check()?;
                let Some(element) = input.next(pull)? else {
                    if must_be_full {
                        return Err(too_few_error(at, shards));
                    }
                    return Ok(None);
                };
                at += 1;
                if (at - 1) % shards != index {
                    continue;
                }
                while must_be_full && at < shards {
                    pull.check()?;
                    if input.next(pull)?.is_none() {
                        return Err(too_few_error(at, shards));
                    }
                    at += 1;
                }
                must_be_full = false;
                return Ok(Some(element));
            }
        })
    })
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
        let mut input = inner.iterator(ctx)?;
        let mut seen = FxHashSet::default();
        from_fn(move |pull| {
            loop {
                pull.check()?;
                let Some(element) = input.next(pull)? else { return Ok(None) };
                if seen.insert(element_key(&element)?) {
                    return Ok(Some(element));
                }
            }
        })
    })
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
        let mut input = inner.iterator(ctx)?;
        from_fn(move |pull| {
            loop {
                // A cancellation ends the pull, unlike the error of an element, which is skipped.
                pull.check()?;
                if let Ok(element) = input.next(pull) {
                    return Ok(element);
                }
            }
        })
    })
}

/// Returns the dataset of the input's elements, with an error if the input has more or fewer than `expected` elements.
pub(crate) fn assert_cardinality(input: Arc<Dataset>, expected: i64) -> Result<Arc<Dataset>> {
    let inner = input.clone();
    dataset("AssertCardinality", input.spec.clone(), expected, &[&input], move |ctx| {
        let mut input = inner.iterator(ctx)?;
        let mut seen = 0i64;
        from_fn(move |pull| {
            let element = input.next(pull)?;
            seen += i64::from(element.is_some());
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
}

fn elements_text(n: Cardinality) -> String {
    match n {
        INFINITE => "an infinite number of elements".to_owned(),
        UNKNOWN => "an unknown number of elements".to_owned(),
        1 => "1 element".to_owned(),
        n => format!("{n} elements"),
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
        let mut selector = choose.iterator(&ctx.input(0))?;
        let chosen = from.iter().enumerate().map(|(i, d)| d.iterator(&ctx.input(i + 1)).map(Some));
        let mut inputs = chosen.collect::<Result<Vec<_>>>()?;
        from_fn(move |pull| {
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
