//! Datasets whose elements depend on time: delayed elements, and the fastest of several equal datasets.

use super::function::{CapturedFunction, FunctionInstance};
use super::state::{ExchangedState, InputState, StateExchange, mismatch};
use super::transform::{dataset, from_fn, from_state};
use super::{Cardinality, Dataset, DatasetIterator, DatasetVariant, Element, ElementSpec};
use super::{IteratorContext, Pull, relaxed};
use device::Result;
use graph::Tensor;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Boxed = Box<dyn DatasetIterator>;

/// Returns the dataset of the input's elements, each delayed by `microseconds`.
///
/// # Errors
/// `InvalidArgument` if the delay is negative.
pub(crate) fn sleep(input: Arc<Dataset>, microseconds: i64) -> Result<Arc<Dataset>> {
    let Ok(microseconds) = u64::try_from(microseconds) else {
        device::invalid!("`sleep_microseconds` must be >= 0");
    };
    let (inner, delay) = (input.clone(), Duration::from_micros(microseconds));
    dataset("Sleep", input.spec.clone(), input.cardinality, &[&input], move |ctx| {
        from_state("Sleep", InputState::new(inner.iterator(ctx)?, ()), move |state, pull| {
            pause(pull, delay)?;
            state.next_input(pull)
        })
    })
}

/// Waits for the given time, or until the pull is cancelled.
///
/// # Errors
/// The reason of the cancellation.
pub(super) fn pause(pull: &Pull, delay: Duration) -> Result<()> {
    let ended = Arc::new((Mutex::new(false), Condvar::new()));
    let waker = ended.clone();
    let registration = pull.cancellation.register(move |_| {
        *waker.0.lock() = true;
        waker.1.notify_all();
    })?;
    ended.1.wait_while_for(&mut ended.0.lock(), |is_cancelled| !*is_cancelled, delay);
    pull.cancellation.deregister(registration);
    pull.check()
}

/// The state of an iterator over the fastest of several inputs.
struct FastestState {
    /// The inputs; the fastest only, once it is chosen.
    inputs: Vec<Boxed>,
    /// Number of elements pulled from each input so far.
    pulled: i64,
    /// The index of the fastest input; `None` during the experiments.
    chosen: Option<usize>,
    times: Vec<Duration>,
}

impl FastestState {
    fn choose(&mut self, index: usize) {
        let fastest = self.inputs.swap_remove(index);
        self.inputs = vec![fastest];
        self.chosen = Some(index);
    }
}

impl ExchangedState for FastestState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.value(&mut self.pulled)?;
        let mut chosen = self.chosen;
        exchange.value(&mut chosen)?;
        if exchange.is_restoring()
            && let Some(index) = chosen
        {
            if index >= self.inputs.len() {
                return Err(mismatch());
            }
            self.choose(index);
        }
        exchange.inputs(&mut self.inputs)
    }
}

/// Returns the dataset of the elements of the fastest input. The inputs, which have the same elements, are all read for
/// the first `experiments` elements.
///
/// # Errors
/// `InvalidArgument` if the inputs differ in dtypes, shapes or cardinality, or there is no experiment.
pub(crate) fn choose_fastest(inputs: Vec<Arc<Dataset>>, experiments: i64) -> Result<Arc<Dataset>> {
    let Some(first) = inputs.first() else { device::invalid!("there is no dataset to choose from") };
    if experiments < 1 {
        device::invalid!("num_experiments must be at least 1, got {experiments}");
    }
    let mut spec = first.spec.clone();
    for (i, input) in inputs.iter().enumerate() {
        if input.spec.dtypes != spec.dtypes {
            device::invalid!(
                "All inputs to ChooseFastestDataset must have the same output types. Input {i} has output types: \
                 {:?}. Expected: {:?}.",
                input.spec.dtypes,
                spec.dtypes
            );
        }
        for (c, (shape, other)) in spec.shapes.iter_mut().zip(&input.spec.shapes).enumerate() {
            if !shape.is_compatible(other) {
                device::invalid!(
                    "All inputs to ChooseFastestDataset must have compatible output shapes. Component {c} of input \
                     {i} has shape: {other}. Expected to be compatible with shape: {shape}."
                );
            }
            *shape = relaxed(shape, other);
        }
        if input.cardinality >= 0 && first.cardinality >= 0 && input.cardinality != first.cardinality {
            device::invalid!(
                "All inputs to ChooseFastestDataset must have compatible cardinalities. Input {i} has cardinality: \
                 {}, while all prior inputs have cardinality: {}.",
                input.cardinality,
                first.cardinality
            );
        }
    }
    let (all, cardinality) = (inputs.clone(), first.cardinality);
    dataset("ChooseFastest", spec, cardinality, &inputs.iter().collect::<Vec<_>>(), move |ctx| {
        let iterators = all.iter().enumerate().map(|(i, input)| input.iterator(&ctx.input(i)));
        let state = FastestState {
            inputs: iterators.collect::<Result<_>>()?,
            pulled: 0,
            chosen: None,
            times: vec![Duration::ZERO; all.len()],
        };
        from_state("ChooseFastest", state, move |state, pull| {
            if state.chosen.is_none() && state.pulled >= experiments {
                let fastest = (0..state.times.len()).min_by_key(|i| state.times[*i]).unwrap_or(0);
                state.choose(fastest);
            }
            let mut first = None;
            for (input, time) in state.inputs.iter_mut().zip(&mut state.times) {
                let start = Instant::now();
                let element = input.next(pull);
                *time += start.elapsed();
                first.get_or_insert(element);
            }
            state.pulled += 1;
            first.unwrap_or(Ok(None))
        })
    })
}

/// The parameters of a choice among functions of a dataset.
#[derive(Clone, Debug)]
pub(crate) struct Branches {
    pub(crate) functions: Vec<CapturedFunction>,
    /// Number of elements that each branch returns before the fastest is chosen.
    pub(crate) elements: i64,
    /// Number of output elements per input element, as a fraction.
    pub(crate) ratio: (i64, i64),
}

/// Returns the dataset that the fastest branch makes of the input. In turn, each branch first makes a given number of
/// elements of the next part of the input.
///
/// # Errors
/// `InvalidArgument` unless the ratio and the number of elements are positive.
pub(crate) fn choose_fastest_branch(
    input: Arc<Dataset>,
    branches: Branches,
    spec: ElementSpec,
) -> Result<Arc<Dataset>> {
    let Branches { functions, elements, ratio: (numerator, denominator) } = branches;
    if numerator <= 0 {
        device::invalid!("`ratio_numerator` must be greater than zero.");
    }
    if denominator <= 0 {
        device::invalid!("`ratio_denominator` must be greater than zero.");
    }
    if elements <= 0 || functions.is_empty() {
        device::invalid!("`num_elements_per_branch` must be greater than zero, and there must be a branch");
    }
    let scaled = |count: i64| (i128::from(count) * i128::from(numerator) / i128::from(denominator)) as i64;
    let cardinality: Cardinality =
        if input.cardinality >= 0 { scaled(input.cardinality) } else { input.cardinality };
    let (inner, limit, out) = (input.clone(), scaled(elements), spec.clone());
    dataset("ChooseFastestBranch", spec, cardinality, &[&input], move |ctx| {
        let mut race = Race {
            shared: SharedInput {
                spec: inner.spec.clone(),
                iterator: Arc::new(Mutex::new(inner.iterator(ctx)?)),
            },
            branches: functions.iter().map(|f| f.instance(ctx)).collect::<Result<_>>()?,
            times: vec![Duration::ZERO; functions.len()],
            finished: 0,
            current: None,
            count: 0,
            ctx: ctx.clone(),
            limit,
        };
        let spec = out.clone();
        from_fn("ChooseFastestBranch", move |pull| {
            let element = race.next(pull, elements)?;
            element.map(|element| super::map::checked_element(element, &spec)).transpose()
        })
    })
}

/// The input of all branches.
#[derive(Clone)]
struct SharedInput {
    spec: ElementSpec,
    iterator: Arc<Mutex<Boxed>>,
}

impl SharedInput {
    /// Returns a dataset whose iterators continue in the shared input, for at most `limit` elements.
    fn dataset(&self, limit: Option<i64>) -> Result<Arc<Dataset>> {
        let iterator = self.iterator.clone();
        dataset("Wrapper", self.spec.clone(), super::UNKNOWN, &[], move |_| {
            let (iterator, mut left) = (iterator.clone(), limit);
            from_fn("Wrapper", move |pull| {
                if left == Some(0) {
                    return Ok(None);
                }
                left = left.map(|left| left - 1);
                iterator.lock().next(pull)
            })
        })
    }
}

/// The branches, of which each in turn and then the fastest returns elements.
struct Race {
    shared: SharedInput,
    branches: Vec<FunctionInstance>,
    /// The durations of the pulls of each branch.
    times: Vec<Duration>,
    /// Number of branches that have made their elements; the fastest runs once that is all of them.
    finished: usize,
    /// The iterator over the results of the current branch.
    current: Option<Boxed>,
    /// Number of elements that the current branch has returned.
    count: i64,
    ctx: IteratorContext,
    /// Number of input elements for each branch before the choice.
    limit: i64,
}

impl Race {
    fn next(&mut self, pull: &Pull, elements: i64) -> Result<Option<Element>> {
        let is_racing = self.finished < self.branches.len();
        let fastest = || (0..self.times.len()).min_by_key(|i| self.times[*i]).unwrap_or(0);
        let index = if is_racing { self.finished } else { fastest() };
        let iterator = match &mut self.current {
            Some(current) => current,
            None => {
                let input = self.shared.dataset(is_racing.then_some(self.limit))?;
                let argument = DatasetVariant::tensor(input, [])?;
                let results: Vec<Tensor> = self.branches[index].call(pull, vec![argument])?;
                self.current.insert(super::map::iterate_result(&results, &self.ctx, index)?)
            }
        };
        let start = Instant::now();
        let element = iterator.next(pull);
        if is_racing {
            self.times[index] += start.elapsed();
            self.count += 1;
            if self.count >= elements {
                (self.finished, self.count, self.current) = (self.finished + 1, 0, None);
            }
        }
        element
    }
}
