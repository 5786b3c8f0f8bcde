//! Transformations that apply a function to one element at a time: map, filter, take-while, scan, flat-map.

use super::function::{CapturedFunction, FunctionInstance, end_or_error, predicate_value};
use super::state::{ExchangedState, InputState, StateExchange};
use super::transform::{batch_preserving, dataset, from_state};
use super::{Dataset, DatasetIterator, DatasetVariant, Element, ElementSpec, IteratorContext};
use super::{RandomAccess, UNKNOWN};
use device::Result;
use graph::Tensor;
use std::sync::Arc;

/// Returns the element unchanged if it satisfies the spec.
///
/// # Errors
/// `InvalidArgument` if the dtypes or shapes of the element differ from those of the spec.
pub(super) fn checked_element(element: Element, spec: &ElementSpec) -> Result<Element> {
    if element.len() == spec.dtypes.len() && element.iter().zip(&spec.dtypes).all(|(t, d)| t.dtype() == *d) {
        return Ok(element);
    }
    spec.check(&ElementSpec::of(&element))?;
    Ok(element)
}

/// Returns the dataset of the function's results for each element.
pub(crate) fn map(
    input: Arc<Dataset>,
    f: CapturedFunction,
    spec: ElementSpec,
    preserve_cardinality: bool,
) -> Result<Arc<Dataset>> {
    let inner = input.clone();
    let cardinality = mapped_cardinality(input.cardinality, preserve_cardinality);
    let out = spec.clone();
    let at_index = mapped_at(input.clone(), f.clone(), spec.clone());
    dataset("Map", spec, cardinality, &[&input], move |ctx| {
        let (f, spec) = (f.instance(ctx)?, out.clone());
        let state = InputState::calling(inner.iterator(ctx)?, &f, ());
        from_state("Map", state, move |state, pull| {
            let Some(element) = state.next_input(pull)? else { return Ok(None) };
            match f.call(pull, element) {
                Ok(results) => checked_element(results, &spec).map(Some),
                Err(error) => end_or_error(error, preserve_cardinality),
            }
        })
    })
    .map(|mapped| mapped.with_random_access(at_index))
}

/// Returns the random access to the function's results.
pub(super) fn mapped_at(
    input: Arc<Dataset>,
    f: CapturedFunction,
    spec: ElementSpec,
) -> impl Fn(u64, &RandomAccess) -> Result<Element> + Send + Sync + 'static {
    move |i, access| {
        let element = input.element_at(i as i64, access)?;
        checked_element(f.instance(&access.ctx.within("Map"))?.call(&access.pull, element)?, &spec)
    }
}

/// Returns the cardinality of a mapped dataset: the input's if `preserve_cardinality`, otherwise unknown, because the
/// function may end the dataset.
pub(super) fn mapped_cardinality(input: i64, preserve_cardinality: bool) -> i64 {
    if preserve_cardinality { input } else { UNKNOWN }
}

/// Returns the dataset of the elements for which the predicate returns true.
pub(crate) fn filter(input: Arc<Dataset>, predicate: CapturedFunction) -> Result<Arc<Dataset>> {
    let inner = input.clone();
    let cardinality = if input.cardinality == 0 { 0 } else { UNKNOWN };
    batch_preserving("Filter", input.spec.clone(), cardinality, &[&input], move |ctx| {
        let predicate = predicate.instance(ctx)?;
        let state = InputState::calling(inner.iterator(ctx)?, &predicate, ());
        from_state("Filter", state, move |state, pull| {
            loop {
                pull.check()?;
                let Some(element) = state.next_input(pull)? else { return Ok(None) };
                if predicate.test(pull, element.clone())? {
                    return Ok(Some(element));
                }
            }
        })
    })
}

/// Returns the dataset of the elements whose last component is true, without that component.
pub(crate) fn filter_by_last_component(input: Arc<Dataset>, spec: ElementSpec) -> Result<Arc<Dataset>> {
    let inner = input.clone();
    dataset("FilterByLastComponent", spec, UNKNOWN, &[&input], move |ctx| {
        let state = InputState::new(inner.iterator(ctx)?, ());
        from_state("FilterByLastComponent", state, |state, pull| {
            loop {
                pull.check()?;
                let Some(mut element) = state.next_input(pull)? else { return Ok(None) };
                let Some(last) = element.pop() else { device::invalid!("an element without components") };
                if predicate_value(&[last])? {
                    return Ok(Some(element));
                }
            }
        })
    })
}

/// Returns the dataset of the input's elements before the first element for which the predicate returns false.
pub(crate) fn take_while(input: Arc<Dataset>, predicate: CapturedFunction) -> Result<Arc<Dataset>> {
    let inner = input.clone();
    dataset("TakeWhile", input.spec.clone(), UNKNOWN, &[&input], move |ctx| {
        let predicate = predicate.instance(ctx)?;
        let state = InputState::calling(inner.iterator(ctx)?, &predicate, ());
        from_state("TakeWhile", state, move |state, pull| {
            if let Some(element) = state.next_input(pull)?
                && predicate.test(pull, element.clone())?
            {
                return Ok(Some(element));
            }
            state.input = None;
            Ok(None)
        })
    })
}

/// Returns the dataset of the outputs of `f`, which maps a state and an element to a new state and an output.
pub(crate) fn scan(
    input: Arc<Dataset>,
    initial: Element,
    f: CapturedFunction,
    spec: ElementSpec,
    preserve_cardinality: bool,
) -> Result<Arc<Dataset>> {
    let inner = input.clone();
    let cardinality = mapped_cardinality(input.cardinality, preserve_cardinality);
    let out = spec.clone();
    dataset("Scan", spec, cardinality, &[&input], move |ctx| {
        let (f, spec) = (f.instance(ctx)?, out.clone());
        let scan = InputState::calling(inner.iterator(ctx)?, &f, initial.clone());
        from_state("Scan", scan, move |scan, pull| {
            let Some(element) = scan.next_input(pull)? else { return Ok(None) };
            let state = &mut scan.value;
            let arguments = state.iter().cloned().chain(element).collect();
            let mut results = match f.call(pull, arguments) {
                Ok(results) => results,
                Err(error) => return end_or_error(error, preserve_cardinality),
            };
            if results.len() < state.len() {
                device::invalid!("Scan function must return at least as many values as its state has");
            }
            let element = results.split_off(state.len());
            if let Some(i) = (0..state.len()).find(|&i| results[i].dtype() != state[i].dtype()) {
                device::invalid!(
                    "Got wrong type for scan_func return value {i} (expected {}, got {}).",
                    state[i].dtype(),
                    results[i].dtype()
                );
            }
            *state = results;
            checked_element(element, &spec).map(Some)
        })
    })
}

/// Returns an iterator over the dataset that a function returned for the element with index `at`.
pub(super) fn iterate_result(
    results: &[Tensor],
    ctx: &IteratorContext,
    at: usize,
) -> Result<Box<dyn DatasetIterator>> {
    let [dataset] = results else {
        device::invalid!("Function must return a single scalar of dtype DT_VARIANT.");
    };
    DatasetVariant::of(dataset)?.iterator(&ctx.element(at))
}

/// Returns the dataset of the elements of the datasets that the function returns, one dataset after the other.
pub(crate) fn flat_map(input: Arc<Dataset>, f: CapturedFunction, spec: ElementSpec) -> Result<Arc<Dataset>> {
    let inner = input.clone();
    let cardinality = if input.cardinality == 0 { 0 } else { UNKNOWN };
    dataset("FlatMap", spec, cardinality, &[&input], move |ctx| {
        let state = FlatMapState {
            input: Some(inner.iterator(ctx)?),
            f: f.instance(ctx)?,
            ctx: ctx.clone(),
            current: None,
            element: Element::new(),
            count: 0,
        };
        from_state("FlatMap", state, |state, pull| {
            loop {
                pull.check()?;
                if let Some(iterator) = &mut state.current {
                    if let Some(element) = iterator.next(pull)? {
                        return Ok(Some(element));
                    }
                    state.current = None;
                }
                let Some(input) = &mut state.input else { return Ok(None) };
                let Some(element) = input.next(pull)? else { return Ok(None) };
                state.element = element.clone();
                let results = state.f.call(pull, element)?;
                state.current = Some(iterate_result(&results, &state.ctx, state.count)?);
                state.count += 1;
            }
        })
    })
}

/// The state of an iterator over the datasets that a function returns.
struct FlatMapState {
    input: Option<Box<dyn DatasetIterator>>,
    f: FunctionInstance,
    ctx: IteratorContext,
    /// The iterator over the dataset of the current element.
    current: Option<Box<dyn DatasetIterator>>,
    /// The current element: a restored iterator calls the function with it, which returns the current dataset again.
    element: Element,
    /// Number of datasets that the function has returned.
    count: usize,
}

impl ExchangedState for FlatMapState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.function(&self.f)?;
        exchange.value(&mut self.count)?;
        exchange.input(&mut self.input)?;
        let mut element = self.current.is_some().then(|| self.element.clone());
        exchange.value(&mut element)?;
        self.element = element.unwrap_or_default();
        let pull = exchange.pull();
        exchange.remade(&mut self.current, || {
            let results = self.f.call(pull, self.element.clone())?;
            iterate_result(&results, &self.ctx, self.count.saturating_sub(1))
        })
    }
}
