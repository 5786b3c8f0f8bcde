//! Interleaving: takes a block of elements from each dataset of a cycle in turn. The parallel form prefetches each
//! dataset of the cycle and returns the elements in the order of the sequential form.

use super::function::{CapturedFunction, FunctionInstance};
use super::map::iterate_result;
use super::prefetch_iterator::{BufferLimit, PrefetchIterator};
use super::state::{ExchangedState, StateExchange, mismatch};
use super::transform::dataset;
use super::{Dataset, DatasetIterator, Element, ElementSpec, IteratorContext, Pull, UNKNOWN};
use device::Result;
use std::sync::Arc;

/// The parameters of an interleaving.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interleaving {
    /// Number of datasets in the cycle; -1 means the number of CPUs.
    pub(crate) cycle_length: i64,
    /// Number of consecutive elements taken from a dataset before the next dataset of the cycle follows.
    pub(crate) block_length: i64,
    /// The prefetching from the datasets of the cycle; `None` for the sequential form.
    pub(crate) ahead: Option<InterleavePrefetch>,
}

/// The extent of prefetching in a parallel interleaving.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InterleavePrefetch {
    /// Number of datasets of the cycle that are prefetched; -1 means the whole cycle.
    pub(crate) datasets: i64,
    /// Number of elements that are prefetched from each dataset.
    pub(crate) elements: i64,
}

impl Interleaving {
    fn check(&self) -> Result<()> {
        if self.cycle_length <= 0 && self.cycle_length != -1 {
            device::invalid!("cycle_length must be greater than zero.");
        }
        if self.block_length <= 0 {
            device::invalid!("block_length must be greater than zero.");
        }
        if let Some(ahead) = self.ahead {
            if ahead.datasets <= 0 && ahead.datasets != -1 {
                device::invalid!("num_parallel_calls must be greater than zero.");
            }
            if ahead.elements < -1 {
                device::invalid!("`buffer_output_elements` must be -1 (AUTOTUNE) or at least 0.");
            }
        }
        Ok(())
    }
}

/// Returns the dataset of the interleaved elements of the datasets that the function returns.
pub(crate) fn interleave(
    input: Arc<Dataset>,
    f: CapturedFunction,
    spec: ElementSpec,
    how: Interleaving,
) -> Result<Arc<Dataset>> {
    how.check()?;
    let inner = input.clone();
    let cardinality = if input.cardinality == 0 { 0 } else { UNKNOWN };
    let name = if how.ahead.is_some() { "ParallelInterleaveV4" } else { "Interleave" };
    dataset(name, spec, cardinality, &[&input], move |ctx| {
        let cycle_length = match how.cycle_length {
            -1 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n as usize,
        };
        Ok(Box::new(InterleaveIterator {
            how,
            cycle_length,
            input: Some(inner.iterator(ctx)?),
            f: f.instance(ctx)?,
            ctx: ctx.clone(),
            current: Vec::new(),
            open: 0,
            prefetched: 0,
            opened: 0,
            position: 0,
            in_block: 0,
        }))
    })
}

struct InterleaveIterator {
    how: Interleaving,
    cycle_length: usize,
    input: Option<Box<dyn DatasetIterator>>,
    f: FunctionInstance,
    ctx: IteratorContext,
    /// The dataset at each position of the cycle, `None` if it is closed; positions beyond the vector's length have
    /// never had a dataset.
    current: Vec<Option<OpenDataset>>,
    /// Number of datasets of the cycle that are open.
    open: usize,
    /// Number of open datasets whose elements are prefetched.
    prefetched: usize,
    /// Number of datasets opened so far, including closed ones.
    opened: usize,
    /// The current position in the cycle.
    position: usize,
    /// Number of consecutive elements taken from the dataset at the current position; at `block_length`, the next
    /// position follows.
    in_block: i64,
}

/// A dataset of the cycle.
struct OpenDataset {
    iterator: OpenIterator,
    /// The element for which the function returned the dataset, and the number of datasets returned before it.
    source: (Element, usize),
}

/// An iterator over a dataset of the cycle.
enum OpenIterator {
    Direct(Box<dyn DatasetIterator>),
    Prefetched(PrefetchIterator),
}

impl OpenIterator {
    fn is_prefetched(&self) -> bool {
        matches!(self, OpenIterator::Prefetched(_))
    }

    /// Starts to prefetch the dataset, if it is prefetched.
    fn start(&mut self) -> Result<()> {
        match self {
            OpenIterator::Direct(_) => Ok(()),
            OpenIterator::Prefetched(iterator) => iterator.start(),
        }
    }

    fn as_dyn(&mut self) -> &mut dyn DatasetIterator {
        match self {
            OpenIterator::Direct(iterator) => &mut **iterator,
            OpenIterator::Prefetched(iterator) => iterator,
        }
    }
}

impl ExchangedState for InterleaveIterator {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.kind("Interleave")?;
        exchange.function(&self.f)?;
        exchange.value(&mut self.opened)?;
        exchange.value(&mut self.position)?;
        exchange.value(&mut self.in_block)?;
        exchange.input(&mut self.input)?;
        let mut positions = self.current.len();
        exchange.value(&mut positions)?;
        if positions > self.cycle_length || self.position > self.cycle_length {
            return Err(mismatch());
        }
        if exchange.is_restoring() {
            self.current.clear();
        }
        for position in 0..positions {
            let of_open = |open: &OpenDataset| (open.source.clone(), open.iterator.is_prefetched());
            let mut source = self.current.get(position).and_then(Option::as_ref).map(of_open);
            exchange.value(&mut source)?;
            if exchange.is_restoring() {
                let open = source.map(|(source, is_prefetched)| {
                    self.opened_dataset(source, is_prefetched, exchange.pull())
                });
                self.current.push(open.transpose()?);
            }
            if let Some(Some(open)) = self.current.get_mut(position) {
                open.iterator.as_dyn().exchange(exchange)?;
                open.iterator.start()?;
            }
        }
        self.open = self.current.iter().flatten().count();
        self.prefetched = self.current.iter().flatten().filter(|open| open.iterator.is_prefetched()).count();
        Ok(())
    }
}

impl InterleaveIterator {
    /// Moves to the next position in the cycle; after the last position, to the first.
    fn advance(&mut self) {
        self.in_block = 0;
        self.position += 1;
        // After the end of the input, positions that were never filled stay empty, so the cycle ends at the last filled
        // position.
        let end = if self.input.is_some() { self.cycle_length } else { self.current.len() };
        if self.position >= end {
            self.position = 0;
        }
    }

    /// Opens the next dataset at the current position.
    fn open_next(&mut self, pull: &Pull) -> Result<()> {
        let Some(input) = &mut self.input else { return Ok(()) };
        let Some(element) = input.next(pull)? else {
            self.input = None;
            return Ok(());
        };
        let has_room = |ahead: InterleavePrefetch| {
            usize::try_from(ahead.datasets).map_or(true, |max| self.prefetched < max)
        };
        let is_prefetched = self.how.ahead.is_some_and(has_room);
        let mut open = self.opened_dataset((element, self.opened), is_prefetched, pull)?;
        // Prefetching starts when the dataset is opened rather than at its first pull, so that it runs while elements
        // of other datasets are taken.
        open.iterator.start()?;
        self.opened += 1;
        self.prefetched += usize::from(is_prefetched);
        if self.position >= self.current.len() {
            self.current.resize_with(self.position + 1, || None);
        }
        self.current[self.position] = Some(open);
        self.open += 1;
        Ok(())
    }

    /// Returns the dataset that the function returns for the element of `source`, the number `source.1`.
    fn opened_dataset(
        &self,
        source: (Element, usize),
        is_prefetched: bool,
        pull: &Pull,
    ) -> Result<OpenDataset> {
        let iterator = iterate_result(&self.f.call(pull, source.0.clone())?, &self.ctx, source.1)?;
        let iterator = match self.how.ahead.filter(|_| is_prefetched) {
            None => OpenIterator::Direct(iterator),
            Some(how) => {
                let elements = how.elements.max(self.how.block_length).max(1);
                let limit = BufferLimit::Fixed(usize::try_from(elements).unwrap_or(usize::MAX));
                OpenIterator::Prefetched(PrefetchIterator::new(iterator, limit))
            }
        };
        Ok(OpenDataset { iterator, source })
    }

    /// Closes the dataset at the current position.
    fn close(&mut self) {
        if let Some(closed) = self.current.get_mut(self.position).and_then(Option::take) {
            self.open -= 1;
            self.prefetched -= usize::from(closed.iterator.is_prefetched());
        }
    }
}

impl DatasetIterator for InterleaveIterator {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        // The parallel form opens all datasets of the cycle before it waits for the first element, so that they are
        // prefetched at the same time.
        if self.how.ahead.is_some() && self.opened == 0 {
            while self.position < self.cycle_length && self.input.is_some() {
                pull.check()?;
                self.open_next(pull)?;
                self.position += 1;
            }
            self.position = 0;
        }
        while self.input.is_some() || self.open > 0 {
            pull.check()?;
            match self.current.get_mut(self.position) {
                Some(Some(open)) => {
                    if let Some(element) = open.iterator.as_dyn().next(pull)? {
                        self.in_block += 1;
                        if self.in_block == self.how.block_length {
                            self.advance();
                        }
                        return Ok(Some(element));
                    }
                    self.close();
                    self.advance();
                }
                _ if self.input.is_some() => self.open_next(pull)?,
                _ => self.advance(),
            }
        }
        Ok(None)
    }
}
