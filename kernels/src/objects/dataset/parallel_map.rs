//! Parallel map, filter and map-and-batch: a thread starts several function calls at once, ahead of the consumer.
//! Results come in the order of the elements unless determinism is disabled.

use super::batch::{batch_size, batched, batches, stack_elements};
use super::function::{CapturedFunction, FunctionInstance, end_or_error};
use super::map::{checked_element, mapped_at, mapped_cardinality};
use super::prefetch_iterator::Monitor;
use super::state::{ExchangedState, StateExchange, mismatch};
use super::threads;
use super::transform::{dataset, from_state};
use super::{Dataset, DatasetIterator, Element, ElementSpec, INFINITE, Pull};
use device::cancel::Cancellation;
use device::{Error, Result};
use graph::Code;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The parallelism of a transformation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parallelism {
    /// Maximum number of concurrent calls; -1 means the number of CPUs.
    pub(crate) calls: i64,
    /// True if the order of elements is kept; `None` uses the option of the whole pipeline.
    pub(crate) deterministic: Option<bool>,
}

impl Parallelism {
    fn check(&self) -> Result<()> {
        if self.calls < 1 && self.calls != -1 {
            device::invalid!("num_parallel_calls must be greater than zero.");
        }
        Ok(())
    }

    fn calls(&self) -> usize {
        match usize::try_from(self.calls) {
            Ok(calls) => calls,
            Err(_) => std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// Returns the dataset of the function's results for each element, with concurrent calls.
pub(crate) fn parallel_map(
    input: Arc<Dataset>,
    f: CapturedFunction,
    spec: ElementSpec,
    preserve_cardinality: bool,
    how: Parallelism,
) -> Result<Arc<Dataset>> {
    parallel_map_of("ParallelMapV2", input, f, spec, preserve_cardinality, how)
}

/// Returns a dataset like [`parallel_map`] whose kind has the name `name`.
pub(crate) fn parallel_map_of(
    name: &'static str,
    input: Arc<Dataset>,
    f: CapturedFunction,
    spec: ElementSpec,
    preserve_cardinality: bool,
    how: Parallelism,
) -> Result<Arc<Dataset>> {
    how.check()?;
    let inner = input.clone();
    let cardinality = mapped_cardinality(input.cardinality, preserve_cardinality);
    let out = spec.clone();
    let at_index = mapped_at(input.clone(), f.clone(), spec.clone());
    dataset(name, spec, cardinality, &[&input], move |ctx| {
        let in_order = how.deterministic.unwrap_or(ctx.deterministic);
        let calls = FunctionCalls::new(inner.iterator(ctx)?, f.instance(ctx)?, how.calls(), in_order);
        let spec = out.clone();
        from_state(name, calls, move |calls, pull| match calls.next(pull)? {
            None => Ok(None),
            Some(Ok(results)) => checked_element(results, &spec).map(Some),
            Some(Err(error)) => end_or_error(error, preserve_cardinality),
        })
    })
    .map(|mapped| mapped.with_random_access(at_index))
}

/// Returns the dataset of batches of the function's results. If the call for an element fails, the whole batch is an
/// error.
pub(crate) fn map_and_batch(
    input: Arc<Dataset>,
    f: CapturedFunction,
    spec: ElementSpec,
    size: i64,
    drop_remainder: bool,
    preserve_cardinality: bool,
    how: Parallelism,
) -> Result<Arc<Dataset>> {
    let count = match batch_size(size) {
        Ok(count) => count,
        Err(_) => device::invalid!("batch_size must be greater than zero."),
    };
    how.check()?;
    let inner = input.clone();
    let mapped = mapped_cardinality(input.cardinality, preserve_cardinality);
    let cardinality = batches(mapped, size, drop_remainder);
    let is_exact = drop_remainder || mapped == INFINITE;
    // If `spec` has shapes, they are the shapes of batches already.
    let spec = if spec.shapes.is_empty() { batched(&spec, count, is_exact) } else { spec };
    dataset("MapAndBatch", spec, cardinality, &[&input], move |ctx| {
        let in_order = how.deterministic.unwrap_or(ctx.deterministic);
        let calls = FunctionCalls::new(inner.iterator(ctx)?, f.instance(ctx)?, how.calls(), in_order);
        let state = MapAndBatchState { calls, has_ended: false };
        from_state("MapAndBatch", state, move |MapAndBatchState { calls, has_ended }, pull| {
            let mut elements = Vec::new();
            let mut failed = None;
            let mut requested = 0;
            while requested < count && !*has_ended {
                match calls.next(pull)? {
                    None => *has_ended = true,
                    Some(Ok(element)) => elements.push(element),
                    Some(Err(error)) => match end_or_error(error, preserve_cardinality) {
                        Ok(_) => *has_ended = true,
                        Err(error) => failed = failed.or(Some(error)),
                    },
                }
                requested += 1;
            }
            match failed {
                Some(error) => Err(error),
                None if elements.is_empty() || elements.len() < count && drop_remainder => Ok(None),
                None => stack_elements(&elements).map(Some),
            }
        })
    })
    .map(|batches| batches.with_batch_size(Some(size)))
}

/// The state of an iterator over batches of results.
struct MapAndBatchState {
    calls: FunctionCalls,
    /// True after the last batch.
    has_ended: bool,
}

impl ExchangedState for MapAndBatchState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.value(&mut self.has_ended)?;
        self.calls.exchange(exchange)
    }
}

/// Returns the dataset of the elements for which the predicate returns true, with concurrent calls.
pub(crate) fn parallel_filter(
    input: Arc<Dataset>,
    predicate: CapturedFunction,
    how: Parallelism,
) -> Result<Arc<Dataset>> {
    how.check()?;
    let inner = input.clone();
    dataset("ParallelFilter", input.spec.clone(), super::UNKNOWN, &[&input], move |ctx| {
        let in_order = how.deterministic.unwrap_or(ctx.deterministic);
        let mut calls =
            FunctionCalls::new(inner.iterator(ctx)?, predicate.instance(ctx)?, how.calls(), in_order);
        calls.keep_arguments = true;
        from_state("ParallelFilter", calls, |calls, pull| {
            loop {
                pull.check()?;
                let Some(results) = calls.next(pull)? else { return Ok(None) };
                let mut results = results?;
                let Some(holds) = results.pop() else {
                    device::invalid!("Filter predicate `f` must return a scalar bool.");
                };
                if super::function::predicate_value(&[holds])? {
                    return Ok(Some(results));
                }
            }
        })
    })
}

/// Concurrent calls of a function, one call for each element of an input, started by a thread.
struct FunctionCalls {
    shared: Arc<Monitor<CallsState>>,
    cancellation: Arc<Cancellation>,
    /// Maximum number of elements whose call is running or whose results have not been consumed.
    max: usize,
    in_order: bool,
    /// True if each result is the element followed by the function's results.
    keep_arguments: bool,
    f: FunctionInstance,
    has_started: bool,
}

struct CallsState {
    /// The input; `None` while the thread pulls from it or its state is saved, and after a panic.
    input: Option<Box<dyn DatasetIterator>>,
    /// For each unconsumed element, its id and the results of its call; `None` while the call is running.
    results: VecDeque<(u64, Option<Result<Element>>)>,
    /// The id of the next element of the input.
    next: u64,
    /// Set when the input has ended.
    ended: bool,
}

impl FunctionCalls {
    fn new(
        input: Box<dyn DatasetIterator>,
        f: FunctionInstance,
        max: usize,
        in_order: bool,
    ) -> FunctionCalls {
        FunctionCalls {
            shared: Monitor::new(CallsState {
                input: Some(input),
                results: VecDeque::new(),
                next: 0,
                ended: false,
            }),
            cancellation: Arc::default(),
            max,
            in_order,
            keep_arguments: false,
            f,
            has_started: false,
        }
    }

    /// Waits for the results of the next call; returns `None` after the last call.
    ///
    /// The inner error is an error of the function call; the outer error is an error of the pull.
    fn next(&mut self, pull: &Pull) -> Result<Option<Result<Element>>> {
        if !std::mem::replace(&mut self.has_started, true) {
            let (shared, max, keep) = (self.shared.clone(), self.max, self.keep_arguments);
            let (f, own) = (self.f.clone(), Pull { cancellation: self.cancellation.clone() });
            threads::spawn(move || start_calls(&shared, &f, max, keep, &own))
                .inspect_err(|_| self.shared.change(|state| state.ended = true))?;
        }
        let in_order = self.in_order;
        self.shared.wait(&pull.cancellation, |state| {
            if state.results.is_empty() {
                return state.ended.then_some(None);
            }
            let done = match in_order {
                true => state.results.front().is_some_and(|(_, r)| r.is_some()).then_some(0),
                false => state.results.iter().position(|(_, r)| r.is_some()),
            };
            state.results.remove(done?).and_then(|(_, result)| result).map(Some)
        })
    }
}

impl ExchangedState for FunctionCalls {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.function(&self.f)?;
        // The thread starts no call while the input is taken, so the results are those of all elements before the
        // input's state.
        let mut input = self.shared.wait(&exchange.pull().cancellation, |state| {
            let all_done = state.results.iter().all(|(_, result)| result.is_some());
            match &state.input {
                Some(_) if all_done => Some(state.input.take()),
                None if all_done && state.ended => Some(None),
                _ => None,
            }
        })?;
        let exchanged = exchange.input(&mut input);
        let shared = self.shared.clone();
        exchange.at_end(move || shared.change(|state| state.input = input));
        exchanged?;
        self.shared.change(|state| {
            exchange.value(&mut state.results)?;
            if state.results.iter().any(|(_, result)| result.is_none()) {
                return Err(mismatch());
            }
            exchange.value(&mut state.next)?;
            exchange.value(&mut state.ended)
        })
    }
}

impl Drop for FunctionCalls {
    fn drop(&mut self) {
        self.cancellation.cancel(Error::new(Code::Cancelled, "the iterator is no longer there"));
    }
}

/// The loop of the thread that starts calls: pulls elements and starts a call for each element, while there are fewer
/// than `max` unconsumed results.
fn start_calls(
    shared: &Arc<Monitor<CallsState>>,
    f: &FunctionInstance,
    max: usize,
    keep_arguments: bool,
    pull: &Pull,
) {
    loop {
        let take_input = |state: &mut CallsState| match state.ended {
            true => Some(None),
            false if state.results.len() < max => state.input.take().map(Some),
            false => None,
        };
        let Ok(Some(mut input)) = shared.wait(&pull.cancellation, take_input) else { return };
        let pulled = catch_unwind(AssertUnwindSafe(|| input.next(pull)));
        let has_panicked = pulled.is_err();
        let element = match pulled.unwrap_or_else(|_| Err(Error::internal("an iterator panicked"))) {
            Ok(Some(element)) => element,
            other => {
                let ends = has_panicked || matches!(other, Ok(None));
                shared.change(|state| {
                    if let Err(error) = other {
                        state.results.push_back((state.next, Some(Err(error))));
                        state.next += 1;
                    }
                    state.ended |= ends;
                    state.input = (!has_panicked).then_some(input);
                });
                if ends {
                    return;
                }
                continue;
            }
        };
        let id = shared.change(|state| {
            state.input = Some(input);
            state.results.push_back((state.next, None));
            state.next += 1;
            state.next - 1
        });
        let results = shared.clone();
        let arguments = keep_arguments.then(|| element.clone());
        let store_result = move |result: Result<Element>| {
            let result = match arguments {
                Some(mut all) => result.map(|results| {
                    all.extend(results);
                    all
                }),
                None => result,
            };
            results.change(|state| {
                if let Some((_, slot)) = state.results.iter_mut().find(|(i, _)| *i == id) {
                    *slot = Some(result);
                }
            });
        };
        f.start(&pull.cancellation, element, Box::new(store_result));
    }
}
