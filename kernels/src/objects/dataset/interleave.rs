//! Interleaving: takes a block of elements from each dataset of a cycle in turn. The parallel form prefetches each
//! dataset of the cycle and returns the elements in the order of the sequential form.

use super::function::{CapturedFunction, FunctionInstance};
use super::map::iterate_result;
use super::prefetch_iterator::{BufferLimit, PrefetchIterator};
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

struct OpenDataset {
    iterator: Box<dyn DatasetIterator>,
    is_prefetched: bool,
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
        let iterator = iterate_result(&self.f.call(pull, element)?, &self.ctx, self.opened)?;
        self.opened += 1;
        let prefetch = self
            .how
            .ahead
            .filter(|ahead| usize::try_from(ahead.datasets).map_or(true, |max| self.prefetched < max));
        let open = match prefetch {
            None => OpenDataset { iterator, is_prefetched: false },
            Some(how) => {
                let elements = how.elements.max(self.how.block_length).max(1);
                let limit = BufferLimit::Fixed(usize::try_from(elements).unwrap_or(usize::MAX));
                let mut ahead = PrefetchIterator::new(iterator, limit);
                // Prefetching starts when the dataset is opened rather than at its first pull, so that it runs while
                // elements of other datasets are taken.
                ahead.start()?;
                self.prefetched += 1;
                OpenDataset { iterator: Box::new(ahead), is_prefetched: true }
            }
        };
        if self.position >= self.current.len() {
            self.current.resize_with(self.position + 1, || None);
        }
        self.current[self.position] = Some(open);
        self.open += 1;
        Ok(())
    }

    /// Closes the dataset at the current position.
    fn close(&mut self) {
        if let Some(closed) = self.current.get_mut(self.position).and_then(Option::take) {
            self.open -= 1;
            self.prefetched -= usize::from(closed.is_prefetched);
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
                    if let Some(element) = open.iterator.next(pull)? {
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
