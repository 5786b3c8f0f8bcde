//! Batching: combines consecutive elements into one, and splits batches into elements.

use super::element::{row, stack};
use super::prefetch_iterator::{BufferLimit, PrefetchIterator};
use super::state::{ExchangedState, InputState, StateExchange, mismatch};
use super::transform::{dataset, from_state};
use super::{Cardinality, Dataset, DatasetIterator, Element, ElementSpec, INFINITE, Pull, UNKNOWN};
use device::Result;
use graph::{PartialShape, Tensor};
use std::sync::Arc;

/// Returns the number of batches of `size` elements that a dataset of `input` elements gives.
pub(super) fn batches(input: Cardinality, size: i64, drop_remainder: bool) -> Cardinality {
    match input {
        n @ (INFINITE | UNKNOWN) => n,
        n => n / size + i64::from(!drop_remainder && n % size != 0),
    }
}

/// Returns the batch size as a `usize`.
///
/// # Errors
/// `InvalidArgument` unless the size is positive.
pub(super) fn batch_size(size: i64) -> Result<usize> {
    match usize::try_from(size) {
        Ok(size @ 1..) => Ok(size),
        _ => device::invalid!("Batch size must be greater than zero."),
    }
}

/// Returns the spec of batches of elements of `spec`. The batch dimension is `size` if `is_exact` (every batch is
/// full), and unknown otherwise.
pub(super) fn batched(spec: &ElementSpec, size: usize, is_exact: bool) -> ElementSpec {
    let with_batch = |shape: &PartialShape| match shape.dims() {
        Some(dims) => {
            PartialShape::of_dims(std::iter::once(is_exact.then_some(size)).chain(dims.iter().copied()))
        }
        None => PartialShape::unknown(),
    };
    ElementSpec { dtypes: spec.dtypes.clone(), shapes: spec.shapes.iter().map(with_batch).collect() }
}

/// Collects up to `size` elements from `next`; the result is shorter only if the input ends.
pub(super) fn collect(
    size: usize,
    pull: &Pull,
    mut next: impl FnMut(&Pull) -> Result<Option<Element>>,
) -> Result<Vec<Element>> {
    let mut elements = Vec::new();
    while elements.len() < size {
        pull.check()?;
        match next(pull)? {
            Some(element) => elements.push(element),
            None => break,
        }
    }
    Ok(elements)
}

/// Stacks several elements into one element: each component becomes a tensor with the batch as its first dimension.
pub(super) fn stack_elements(elements: &[Element]) -> Result<Element> {
    let components = elements.first().map_or(0, Vec::len);
    if elements.iter().any(|e| e.len() != components) {
        device::invalid!("elements of a batch have different numbers of components");
    }
    (0..components).map(|c| stack(&elements.iter().map(|e| &e[c]).collect::<Vec<_>>(), c)).collect()
}

/// Returns the dataset of batches of `size` elements. A thread prefetches `ahead` batches: no batch if it is `None`; if
/// it is -1, the number grows to 16.
pub(crate) fn batch(
    input: Arc<Dataset>,
    size: i64,
    drop_remainder: bool,
    ahead: Option<i64>,
) -> Result<Arc<Dataset>> {
    let count = batch_size(size)?;
    if ahead.is_some_and(|ahead| ahead < 1 && ahead != -1) {
        device::invalid!("num_parallel_calls must be greater than zero.");
    }
    let is_exact = drop_remainder || input.cardinality == INFINITE;
    let spec = batched(&input.spec, count, is_exact);
    let cardinality = batches(input.cardinality, size, drop_remainder);
    let (inner, whole) = (input.clone(), input.clone());
    let name = if ahead.is_some() { "ParallelBatch" } else { "BatchV2" };
    dataset(name, spec, cardinality, &[&input], move |ctx| {
        // The value of the state is true after the last batch.
        let state = InputState::new(inner.iterator(ctx)?, false);
        let batches = from_state("BatchV2", state, move |state, pull| {
            if state.value {
                return Ok(None);
            }
            let elements = collect(count, pull, |pull| state.next_input(pull))?;
            let has_ended = elements.len() < count;
            state.value = has_ended;
            if elements.is_empty() || has_ended && drop_remainder {
                return Ok(None);
            }
            stack_elements(&elements).map(Some)
        })?;
        Ok(match ahead {
            None => batches,
            Some(-1) => Box::new(PrefetchIterator::new(batches, BufferLimit::Growing(16))),
            Some(many) => Box::new(PrefetchIterator::new(batches, BufferLimit::Fixed(many as usize))),
        })
    })
    .map(|batches| batches.with_batch_size(ahead.is_none().then_some(size)))
    .map(|batches| {
        batches.with_random_access(move |i, access| {
            let start = (i as i64).saturating_mul(size);
            let end = start.saturating_add(size).min(whole.cardinality);
            let elements = (start..end).map(|i| whole.element_at(i, access)).collect::<Result<Vec<_>>>()?;
            stack_elements(&elements)
        })
    })
    .map(|batches| match drop_remainder {
        true => batches,
        false => {
            let reason = "does not support global shuffling with `drop_remainder=False`.";
            batches.with_order_error(format!("FAILED_PRECONDITION: {name} {reason}"))
        }
    })
}

/// The state of an iterator over the rows of its input's elements.
struct UnbatchState {
    input: Box<dyn DatasetIterator>,
    current: Element,
    /// The next row of the current element.
    next: usize,
    /// Number of rows of the current element.
    count: usize,
}

impl ExchangedState for UnbatchState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.value(&mut self.current)?;
        exchange.value(&mut self.next)?;
        exchange.value(&mut self.count)?;
        let rows = |tensor: &Tensor| tensor.shape().first().copied();
        if self.current.iter().any(|tensor| rows(tensor) != Some(self.count)) {
            return Err(mismatch());
        }
        self.input.exchange(exchange)
    }
}

/// Returns the dataset of the rows of each input element: the component tensors are split along their first dimension.
pub(crate) fn unbatch(input: Arc<Dataset>) -> Result<Arc<Dataset>> {
    let mut spec = input.spec.clone();
    let mut rows = None;
    for shape in &mut spec.shapes {
        if shape.rank() == Some(0) {
            device::invalid!("Cannot unbatch an input with scalar components.");
        }
        rows = rows.or(shape.dim(0));
        *shape = match shape.dims() {
            Some(dims) => PartialShape::of_dims(dims[1..].iter().copied()),
            None => PartialShape::unknown(),
        };
    }
    let cardinality = match (input.cardinality, rows) {
        (0, _) | (_, Some(0)) => 0,
        (INFINITE, Some(_)) => INFINITE,
        (n @ 1.., Some(rows)) => {
            i64::try_from(rows).ok().and_then(|rows| n.checked_mul(rows)).unwrap_or(INFINITE)
        }
        _ => UNKNOWN,
    };
    let inner = input.clone();
    dataset("Unbatch", spec, cardinality, &[&input], move |ctx| {
        let state = UnbatchState { input: inner.iterator(ctx)?, current: Element::new(), next: 0, count: 0 };
        from_state("Unbatch", state, move |state, pull| {
            let UnbatchState { input, current, next, count } = state;
            while *next >= *count {
                pull.check()?;
                let Some(element) = input.next(pull)? else { return Ok(None) };
                let rows = |i: usize| element.get(i).and_then(|t| t.shape().first().copied());
                let Some(first) = rows(0) else {
                    device::invalid!("Input element must have a non-scalar value in each component.");
                };
                for i in 0..element.len() {
                    match rows(i) {
                        None => {
                            device::invalid!("Input element must have a non-scalar value in each component.")
                        }
                        Some(n) if n != first => device::invalid!(
                            "Input element must have the same batch size in each component. Component 0 had size \
                             {first} but component {i} had size, {n}."
                        ),
                        Some(_) => {}
                    }
                }
                (*current, *next, *count) = (element, 0, first);
            }
            *next += 1;
            current.iter().map(|t| row(t, *next - 1)).collect::<Result<Element>>().map(Some)
        })
    })
}
